import type { Slot, Slots } from '../../lib/async/slots.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

export interface GradersOptions {
  /** A prepared sandbox that shares nothing with the agent's. */
  startClean(signal: AbortSignal): Promise<Sandbox>
  /** The same, prepared as the agent's was. */
  startUntouched(signal: AbortSignal): Promise<Sandbox>
  /** One that begins with all that the agent left; undefined when the evaluator did not say that it needs it. */
  startFromAgent: ((signal: AbortSignal) => Promise<Sandbox>) | undefined
  /** How many may stand by at a time, of all sessions. */
  standby: Slots
  /** Monotonic milliseconds. */
  now(): number
}

/** What preparing a grader early cost and what it gained. Milliseconds. */
export interface PrewarmTimes {
  /** It stood ready and nobody wanted it yet. */
  idleMs: number
  /** Grading began so much earlier than it would have. */
  savedMs: number
}

interface Early {
  sandbox: Promise<Sandbox>
  startedAt: number
  /** Absent while it is being made. */
  readyAt?: number
  slot: Slot
}

/** The sandboxes that one session is graded in; one of them may be made before it is wanted. */
export class Graders implements AsyncDisposable {
  readonly #options: GradersOptions
  readonly #over = new AbortController()
  readonly #all: Promise<Sandbox | undefined>[] = []
  #early: Early | undefined
  #times: PrewarmTimes | undefined

  constructor(options: GradersOptions) {
    this.#options = options
  }

  /** Undefined when none was made early. */
  get prewarmTimes(): PrewarmTimes | undefined {
    return this.#times
  }

  /** Makes one now, for the first who asks, unless too many stand by already. Its failure shows when it is asked for. */
  prewarm(): void {
    if (this.#early !== undefined || this.#over.signal.aborted) return
    const slot = this.#options.standby.tryAcquire()
    if (slot === undefined) return
    const early: Early = {
      sandbox: this.#start((signal) => this.#options.startClean(signal)),
      startedAt: this.#options.now(),
      slot,
    }
    this.#early = early
    early.sandbox.then(
      () => (early.readyAt = this.#options.now()),
      () => slot.release(),
    )
  }

  async take(from: 'clean' | 'untouched' | 'agent', signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const early = this.#early
    if (from === 'clean' && early !== undefined) {
      this.#early = undefined
      const wantedAt = this.#options.now()
      early.slot.release()
      const { startedAt, readyAt } = early
      this.#times =
        readyAt === undefined
          ? { idleMs: 0, savedMs: wantedAt - startedAt }
          : { idleMs: wantedAt - readyAt, savedMs: readyAt - startedAt }
      try {
        return await early.sandbox
      } catch {
        // What ailed it then may be over; the one who wants it now sees what ails the next.
      }
    }
    if (from === 'clean') return this.#start((stop) => this.#options.startClean(stop), signal)
    if (from === 'untouched') return this.#start((stop) => this.#options.startUntouched(stop), signal)
    const { startFromAgent } = this.#options
    if (startFromAgent === undefined) {
      throw new RolloutError(
        'evaluator.crashed',
        'The evaluator asked for all the agent left, but did not say it would.',
      )
    }
    return this.#start((stop) => startFromAgent(stop), signal)
  }

  #start(start: (signal: AbortSignal) => Promise<Sandbox>, signal?: AbortSignal): Promise<Sandbox> {
    const either = signal === undefined ? this.#over.signal : AbortSignal.any([signal, this.#over.signal])
    const sandbox = start(either)
    this.#all.push(sandbox.catch(() => undefined))
    return sandbox
  }

  /** Removes them all, also those that are still being made. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort(new Error('The session is over.'))
    this.#early?.slot.release()
    this.#early = undefined
    await Promise.all(this.#all.map(async (started) => (await started)?.stop()))
  }
}
