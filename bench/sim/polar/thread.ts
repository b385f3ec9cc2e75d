import { createRandom } from '../random.ts'
import type { VirtualClock } from '../clock.ts'
import type { Scenario } from '../scenario.ts'

/** What the server does for others, by what it costs. */
export type Operation = 'enqueue' | 'join' | 'lease' | 'renew' | 'accept' | 'expire' | 'policy' | 'maintain'

/**
 * Milliseconds of the database that an operation takes, and for each row of it: what PGlite was measured to take on a
 * quiet machine. Time in the simulation passes by these and not by the clock of the machine, so that a run can be made again.
 */
const COSTS_MS: Record<Operation, { each: number; row: number }> = {
  enqueue: { each: 5, row: 0.1 },
  join: { each: 1.5, row: 0.1 },
  lease: { each: 1.5, row: 0.2 },
  renew: { each: 1, row: 0.05 },
  accept: { each: 2, row: 0.4 },
  expire: { each: 2, row: 0.005 },
  policy: { each: 2, row: 0 },
  maintain: { each: 200, row: 0 },
}

interface Job {
  operation: Operation
  rows: number
  work: () => Promise<unknown>
  settle: (answer: { value: unknown } | undefined) => void
}

/** As many results share a transaction; see settle-lanes.ts. */
const MOST_TOGETHER = 32

/**
 * The one thread of the server and its database, and the way to it. Jobs are done in the order in which they come, one
 * at a time, but results that wait are accepted together. While it is down all are refused.
 */
export class ServerThread {
  readonly #clock: VirtualClock
  readonly #measure: <T>(operation: Operation, work: () => Promise<T>) => Promise<T>
  readonly #queue: Job[] = []
  readonly #gathered: Job[] = []
  readonly #gatherMs: number
  readonly #jitter
  readonly #roundTripMs: number
  #isBusy = false
  isUp = true
  /** How long jobs waited for their turn; longest and in all. */
  readonly waitedMs = { longest: 0, all: 0, jobs: 0 }
  busyMs = 0

  constructor(
    clock: VirtualClock,
    { roundTripMs, gatherMs, seed }: Scenario,
    measure: <T>(operation: Operation, work: () => Promise<T>) => Promise<T>,
  ) {
    this.#clock = clock
    this.#measure = measure
    this.#roundTripMs = roundTripMs
    this.#gatherMs = gatherMs
    this.#jitter = createRandom(seed, 'network')
  }

  /** One way of a message. */
  travel(): number {
    return this.#roundTripMs * (0.25 + this.#jitter() / 2)
  }

  /** Undefined: the server is not there, or went away before it answered. */
  async do<T>(operation: Operation, rows: number, work: () => Promise<T>): Promise<{ value: T } | undefined> {
    if (!this.isUp) return undefined
    const arrivedMs = this.#clock.elapsed
    const { promise, resolve } = Promise.withResolvers<{ value: unknown } | undefined>()
    const job: Job = { operation, rows, work, settle: resolve }
    if (operation === 'accept' && this.#gatherMs > 0) this.#gather(job)
    else this.#enqueue([job])
    const answer = await promise
    const waited = this.#clock.elapsed - arrivedMs
    this.waitedMs.longest = Math.max(this.waitedMs.longest, waited)
    this.waitedMs.all += waited
    this.waitedMs.jobs += 1
    return answer as { value: T } | undefined
  }

  goDown(): void {
    this.isUp = false
    for (const { settle } of [...this.#queue.splice(0), ...this.#gathered.splice(0)]) settle(undefined)
  }

  #enqueue(jobs: readonly Job[]): void {
    this.#queue.push(...jobs)
    if (!this.#isBusy) this.#next()
  }

  #gather(job: Job): void {
    this.#gathered.push(job)
    if (this.#gathered.length === 1) this.#clock.after(this.#gatherMs, () => this.#enqueue(this.#gathered.splice(0)))
  }

  #next(): void {
    const jobs = this.#takeTogether()
    const [first] = jobs
    this.#isBusy = first !== undefined
    if (first === undefined) return
    const { each, row } = COSTS_MS[first.operation]
    const costMs = each + row * jobs.reduce((sum, { rows }) => sum + rows, 0)
    this.busyMs += costMs
    this.#clock.after(costMs, () => {
      this.#clock.outside(this.#perform(first.operation, jobs)).catch(this.#clock.fail)
    })
  }

  #takeTogether(): Job[] {
    const first = this.#queue.shift()
    if (first === undefined) return []
    const jobs = [first]
    if (first.operation !== 'accept') return jobs
    for (let i = 0; i < this.#queue.length && jobs.length < MOST_TOGETHER;) {
      if (this.#queue[i]?.operation === 'accept') jobs.push(...this.#queue.splice(i, 1))
      else i += 1
    }
    return jobs
  }

  /** What was begun when the server went down has happened or not; here it has not. */
  async #perform(operation: Operation, jobs: readonly Job[]): Promise<void> {
    if (this.isUp) {
      const values = await this.#measure(operation, () => Promise.all(jobs.map(({ work }) => work())))
      for (const [i, { settle }] of jobs.entries()) settle({ value: values[i] })
    } else for (const { settle } of jobs) settle(undefined)
    this.#next()
  }
}
