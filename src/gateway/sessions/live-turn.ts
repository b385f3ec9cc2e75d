import type { Failure } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import type { SessionLog, TurnIntent } from '../../store/store.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { LONG_REQUEST_UNITS, shortenRequest } from '../http/shorten-request.ts'

/** Receives the events of a turn as they arrive. A returned promise pauses the engine until it is resolved. */
export interface Listener {
  deliver(events: readonly StreamEvent[]): void | Promise<void>
}

/** The end of a turn. The call log contains the turn before a listener receives this. */
export interface TurnEnding {
  /** Absent when the engine sent nothing; partial when `failure` is present too. */
  response?: TurnResponse
  failure?: Failure
}

export function intentOf(
  { dialect, model, stream, wire }: TurnRequest,
  id: string,
  startedAt: number,
): Omit<TurnIntent, 'index' | 'headers'> {
  return { id, dialect, startedAt, model, stream, request: wire.text }
}

/**
 * A model call in flight, its listeners and its record in the call log. Harness requests that repeat the call join it.
 * When the last listener has left, `signal` is aborted, which stops the engine; the answer so far is stored.
 */
export class LiveTurn {
  readonly id: string
  readonly startedAt: number
  readonly capture = new TurnCapture()
  readonly listeners = new Set<Listener>()
  readonly ended: Promise<TurnEnding>
  readonly #intent: Omit<TurnIntent, 'index'>
  readonly #log: SessionLog
  readonly #abandoned = new AbortController()
  #isRequestLogged = false
  #isDelivered = false

  /** `generate` sends the request to the engine and stores the answer. It runs once, and begins at once. */
  constructor(intent: Omit<TurnIntent, 'index'>, log: SessionLog, generate: (turn: LiveTurn) => Promise<TurnEnding>) {
    this.id = intent.id
    this.startedAt = intent.startedAt
    this.#intent = intent
    this.#log = log
    // A long request is logged when the engine has accepted or rejected it.
    if (intent.request.length <= LONG_REQUEST_UNITS) this.logRequest({ isAccepted: true })
    this.ended = generate(this)
  }

  get signal(): AbortSignal {
    return this.#abandoned.signal
  }

  /**
   * Adds a listener until the turn ends or `signal` is aborted. The listener first receives the answer so far in one
   * batch. Resolves when the turn has ended.
   */
  async join(listener: Listener, signal: AbortSignal): Promise<TurnEnding> {
    const ready = listener.deliver(this.capture.toEvents())
    this.listeners.add(listener)
    await ready
    const leave = (): void => this.#leave(listener)
    signal.addEventListener('abort', leave)
    if (signal.aborted) leave()
    const ending = await this.ended
    signal.removeEventListener('abort', leave)
    return ending
  }

  #leave(listener: Listener): void {
    this.listeners.delete(listener)
    if (this.listeners.size === 0) this.#abandoned.abort()
  }

  /** Writes the request to the call log, unless it was written before. A rejected long request is shortened. */
  logRequest({ isAccepted }: { isAccepted: boolean }): void {
    if (this.#isRequestLogged) return
    this.#isRequestLogged = true
    const request = isAccepted ? this.#intent.request : shortenRequest(this.#intent.request)
    this.#log.appendIntent({ ...this.#intent, index: this.#log.turns, request })
  }

  /** Records whether a listener received the whole answer. The first complete delivery is the last one recorded. */
  logDelivery(isDelivered: boolean): void {
    if (this.#isDelivered) return
    this.#isDelivered = isDelivered
    this.#log.appendDelivery(this.id, isDelivered ? 'delivered' : 'undelivered')
  }
}
