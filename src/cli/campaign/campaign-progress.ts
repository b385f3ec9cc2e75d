import type { CampaignPlan } from './campaign-plan.ts'

/** Measures the rate of this process, for the progress line of the terminal. */
export class CampaignProgress {
  readonly #plan: Pick<CampaignPlan, 'accepted' | 'reachable' | 'started'>
  readonly #now: () => number
  readonly #begun: number
  readonly #acceptedBefore: number
  #decided = 0

  /** `now` in milliseconds, any origin. */
  constructor(plan: Pick<CampaignPlan, 'accepted' | 'reachable' | 'started'>, now: () => number) {
    this.#plan = plan
    this.#now = now
    this.#begun = now()
    this.#acceptedBefore = plan.accepted
  }

  /** Counts a decided session. */
  add(): void {
    this.#decided += 1
  }

  /** The bar counts accepted trajectories, of those that the tasks can still reach. */
  read(): { done: number; total: number; note: string } {
    const { accepted, reachable } = this.#plan
    const minutes = (this.#now() - this.#begun) / 60_000
    const gained = accepted - this.#acceptedBefore
    if (this.#decided === 0 || minutes <= 0) return { done: accepted, total: reachable, note: 'accepted' }
    const rates = `accepted, ${(this.#decided / minutes).toFixed(1)} sessions and ${(gained / minutes).toFixed(1)} accepted per minute`
    const left = gained === 0 ? '' : `, about ${formatMinutes(((reachable - accepted) * minutes) / gained)} left`
    return { done: accepted, total: reachable, note: `${rates}${left}` }
  }
}

function formatMinutes(minutes: number): string {
  if (minutes < 1) return `${Math.ceil(minutes * 60)} s`
  return minutes < 120 ? `${Math.ceil(minutes)} min` : `${(minutes / 60).toFixed(1)} h`
}
