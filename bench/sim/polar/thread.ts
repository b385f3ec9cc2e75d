import { createRandom } from '../random.ts'
import type { VirtualClock } from '../clock.ts'
import type { Scenario } from '../scenario.ts'

/** Operations of the server, by their cost. */
export type Operation = 'enqueue' | 'join' | 'lease' | 'renew' | 'accept' | 'expire' | 'policy' | 'maintain'

/**
 * Database milliseconds of an operation, and of each of its rows, as measured for PGlite on an idle machine. The simulation
 * uses these instead of the machine's clock, so that a run can be repeated.
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

/** Results that share a transaction; see settle-queue.ts. */
const MOST_TOGETHER = 32

/**
 * The single thread of the server and its database, and the network to it. Jobs run in order of arrival, one at a time, but
 * waiting results are accepted together. While the server is down all jobs are rejected.
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
  /** Waiting time of jobs: the longest, and the sum. */
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

  /** One-way delay of a message. */
  travel(): number {
    return this.#roundTripMs * (0.25 + this.#jitter() / 2)
  }

  /** Undefined if the server is down, or went down before it answered. */
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

  /** A job in progress when the server goes down may or may not take effect; here it does not. */
  async #perform(operation: Operation, jobs: readonly Job[]): Promise<void> {
    if (this.isUp) {
      const values = await this.#measure(operation, () => Promise.all(jobs.map(({ work }) => work())))
      for (const [i, { settle }] of jobs.entries()) settle({ value: values[i] })
    } else for (const { settle } of jobs) settle(undefined)
    this.#next()
  }
}
