import type { MonotonicClock } from '../../lib/async/clock.ts'
import type { Failure, FailureCode } from '../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../model/session.ts'

/**
 * The allowed transitions. A session that was initialised passes POST_RUN, where its sandbox is removed, and also BUILDING
 * if its harness ran, however the harness ended: captured calls are never discarded.
 */
export const transitions: Readonly<Record<SessionStatus, readonly SessionStatus[]>> = {
  REGISTERED: ['INITIALIZING', 'CANCELLED'],
  INITIALIZING: ['READY', 'POST_RUN'],
  READY: ['RUNNING', 'POST_RUN'],
  RUNNING: ['POST_RUN'],
  POST_RUN: ['BUILDING', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  BUILDING: ['EVALUATING', 'COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  EVALUATING: ['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'],
  COMPLETED: [],
  ERROR: [],
  TIMEOUT: [],
  CANCELLED: [],
}

export interface Transition {
  from: SessionStatus
  to: SessionStatus
  /** Unix milliseconds. */
  at: number
}

/** The state of one session. Throws on a transition that is not allowed. */
export class SessionState {
  #status: SessionStatus = 'REGISTERED'
  readonly #since = new Map<SessionStatus, number>()
  readonly #clock: Pick<MonotonicClock, 'now' | 'monotonic'>
  readonly #onTransition: (transition: Transition) => Promise<void>

  /** `onTransition` stores and publishes each transition, in order. */
  constructor(
    clock: Pick<MonotonicClock, 'now' | 'monotonic'>,
    onTransition: (transition: Transition) => Promise<void>,
  ) {
    this.#clock = clock
    this.#onTransition = onTransition
    this.#since.set('REGISTERED', clock.monotonic())
  }

  get status(): SessionStatus {
    return this.#status
  }

  async to(status: SessionStatus): Promise<void> {
    const from = this.#status
    if (!transitions[from].includes(status)) throw new Error(`a session cannot go from ${from} to ${status}`)
    this.#status = status
    this.#since.set(status, this.#clock.monotonic())
    await this.#onTransition({ from, to: status, at: this.#clock.now() })
  }

  /** How long the session has been in each stage. Null for stages that the session did not reach. */
  timing(): SessionTiming {
    const at = (status: SessionStatus): number | undefined => this.#since.get(status)
    const between = (from: number | undefined, to: number | undefined): number | null =>
      from === undefined || to === undefined ? null : to - from
    return {
      register_to_init_queue_ms: between(at('REGISTERED'), at('INITIALIZING')),
      init_ms: between(at('INITIALIZING'), at('READY') ?? at('POST_RUN')),
      ready_queue_ms: between(at('READY'), at('RUNNING') ?? at('POST_RUN')),
      run_ms: between(at('RUNNING'), at('POST_RUN')),
      postrun_ms: between(at('POST_RUN'), this.#clock.monotonic()),
    }
  }
}

const TIMEOUTS: ReadonlySet<FailureCode> = new Set([
  'session.init-timeout',
  'session.agent-timeout',
  'evaluator.timeout',
])

export function toTerminalStatus(failure: Failure | undefined): 'COMPLETED' | 'ERROR' | 'TIMEOUT' | 'CANCELLED' {
  if (failure === undefined) return 'COMPLETED'
  if (failure.code === 'session.cancelled') return 'CANCELLED'
  return TIMEOUTS.has(failure.code) ? 'TIMEOUT' : 'ERROR'
}
