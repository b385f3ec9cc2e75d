import type { Slot, Slots } from '../../lib/async/slots.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

export interface GradersOptions {
  /** Starts a prepared sandbox that shares nothing with the agent's. */
  startClean(signal: AbortSignal): Promise<Sandbox>
  /** Starts a sandbox with the preparation of the agent's sandbox, which the agent never entered. */
  startUntouched(signal: AbortSignal): Promise<Sandbox>
  /** Starts a sandbox from a snapshot of the agent's; undefined if the evaluator does not declare `needs.agentState`. */
  startFromAgent: ((signal: AbortSignal) => Promise<Sandbox>) | undefined
  /** Limits the graders of all sessions that are started early. */
  standby: Slots
  /** Monotonic milliseconds. */
  now(): number
}

/** Cost and gain of starting a grader early, in milliseconds. */
export interface PrewarmTimes {
  /** How long the ready grader was unused. */
  idleMs: number
  /** How much earlier grading began. */
  savedMs: number
}

interface Early {
  sandbox: Promise<Sandbox>
  startedAt: number
  /** Absent while the sandbox is starting. */
  readyAt?: number
  slot: Slot
}

/** The grader sandboxes of one session; one of them may be started before it is needed. */
export class Graders implements AsyncDisposable {
  readonly #options: GradersOptions
  readonly #over = new AbortController()
  readonly #all: Promise<Sandbox | undefined>[] = []
  #early: Early | undefined
  #times: PrewarmTimes | undefined

  constructor(options: GradersOptions) {
    this.#options = options
  }

  /** Undefined if no grader was started early. */
  get prewarmTimes(): PrewarmTimes | undefined {
    return this.#times
  }

  /** Starts a grader for the first `acquire('clean')`, unless too many graders were started early already. */
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

  async acquire(from: 'clean' | 'untouched' | 'agent', signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const early = this.#early
    if (from === 'clean' && early !== undefined) {
      this.#early = undefined
      const neededAt = this.#options.now()
      early.slot.release()
      const { startedAt, readyAt } = early
      this.#times =
        readyAt === undefined
          ? { idleMs: 0, savedMs: neededAt - startedAt }
          : { idleMs: neededAt - readyAt, savedMs: readyAt - startedAt }
      try {
        return await early.sandbox
      } catch {
        // The cause may have passed: start another sandbox, whose failure counts.
      }
    }
    if (from === 'clean') return this.#start((stop) => this.#options.startClean(stop), signal)
    if (from === 'untouched') return this.#start((stop) => this.#options.startUntouched(stop), signal)
    const { startFromAgent } = this.#options
    if (startFromAgent === undefined) {
      throw new RolloutError(
        'evaluator.crashed',
        'The evaluator requested the agent state, but does not declare needs.agentState.',
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

  /** Stops all graders, including those that are still starting. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort(new Error('The session ended.'))
    this.#early?.slot.release()
    this.#early = undefined
    await Promise.all(this.#all.map(async (started) => (await started)?.stop()))
  }
}
