import type { Logger } from 'pino'
import { toFailure, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { StreamEvent } from '../model/stream-event.ts'
import type { TurnRequest, TurnResponse } from '../model/turn.ts'
import type { TurnEnd } from '../store/store.ts'
import { TurnCapture } from './capture/capture-turn.ts'
import { findContinuation } from './tokens/find-continuation.ts'
import type { Gate } from './sessions/gate.ts'
import type { Metrics } from './sessions/metrics.ts'
import type { Quirk } from './quirks/quirk.ts'
import type { Session } from './sessions/sessions.ts'
import { steeringOf } from './sessions/steering.ts'
import { LONG_REQUEST_UNITS, shortenRequest } from './http/shorten-request.ts'
import type { Continuation } from './tokens/continuation.ts'
import type { Upstream, UpstreamReply } from './upstreams/upstream.ts'
import type { WeightHistory } from './sessions/weight-history.ts'

export interface TurnDeps {
  upstream: Upstream
  gate: Gate
  weights: WeightHistory
  metrics: Metrics
  /** Absent: the built-in ones. */
  quirks?: readonly Quirk[]
  ids: IdSource
  logger: Logger
  /** Limit of the call log of one session. Absent: none. */
  logBytes?: number
  /** See `GatewayOptions.onTurnEnd`. */
  onTurnEnd?: (turn: { sessionId: string; tokens: number }) => void
}

/** Someone who wants the answer as it comes. A promise holds the engine back until it is resolved. */
export interface Listener {
  deliver(events: readonly StreamEvent[]): void | Promise<void>
}

/** How a turn ended. It is in the log by the time anyone hears of this. */
export interface TurnEnding {
  /** Absent when nothing came; partial when there is a failure too. */
  response?: TurnResponse
  failure?: Failure
}

export interface TurnOrigin {
  request: TurnRequest
  /** Rules that changed what the engine reads. */
  quirks: readonly string[]
  /** Headers worth keeping: who in the harness asked. */
  headers: Readonly<Record<string, string>>
  /** An earlier turn with the same body, when the harness seems to try again. */
  retryOf?: string
}

/**
 * The engine's side of one turn: calls the engine, captures a copy of all it says, stores it. Goes on as long as anyone
 * listens; when the last listener leaves the engine is told to stop, and what had come is kept.
 */
export class LiveTurn {
  readonly id: string
  readonly #session: Session
  readonly #request: TurnRequest
  readonly #quirks: readonly string[]
  readonly #deps: TurnDeps
  readonly #capture = new TurnCapture()
  readonly #listeners = new Set<Listener>()
  readonly #abandoned = new AbortController()
  readonly #startedAt: number
  readonly #origin: TurnOrigin
  #isLogged = false
  #firstTokenAt: number | undefined
  /** Absent until the engine has begun to answer. */
  #reply: UpstreamReply | undefined
  #notes: Readonly<Record<string, unknown>> = {}
  #isDelivered = false
  readonly ended: Promise<TurnEnding>

  /** Begins at once; `listener` hears everything. */
  constructor(session: Session, origin: TurnOrigin, listener: Listener, deps: TurnDeps) {
    this.id = deps.ids.next('turn')
    this.#session = session
    this.#request = origin.request
    this.#quirks = origin.quirks
    this.#deps = deps
    this.#startedAt = session.now()
    this.#listeners.add(listener)
    this.#origin = origin
    const { text } = origin.request.wire
    if (text.length <= LONG_REQUEST_UNITS) this.#logIntent(text)
    this.ended = this.#run()
  }

  /** A second listener first hears in one piece what has been said so far. */
  async join(listener: Listener): Promise<void> {
    const ready = listener.deliver(this.#capture.toEvents())
    this.#listeners.add(listener)
    await ready
  }

  leave(listener: Listener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size === 0) this.#abandoned.abort()
  }

  /** One of possibly several harness calls got the whole answer, or did not. */
  noteDelivery(isDelivered: boolean): void {
    if (this.#isDelivered) return
    this.#isDelivered = isDelivered
    this.#session.log.appendDelivery(this.id, isDelivered ? 'delivered' : 'undelivered')
  }

  /** Once for each turn. A long request is logged when it is known whether the engine accepts it. */
  #logIntent(text: string): void {
    if (this.#isLogged) return
    this.#isLogged = true
    const { log } = this.#session
    const { headers, retryOf } = this.#origin
    const { dialect, model, stream } = this.#request
    log.appendIntent({
      id: this.id,
      index: log.turns,
      dialect,
      startedAt: this.#startedAt,
      model,
      stream,
      request: text,
      headers,
      ...(retryOf === undefined ? {} : { retryOf }),
    })
  }

  async #run(): Promise<TurnEnding> {
    let failure: Failure | undefined
    try {
      const { signal } = this.#abandoned
      failure = await this.#deps.gate.pass(signal, () => this.#relay(signal))
    } catch (error) {
      failure = toFailure(error)
      if (failure.code === 'internal.bug')
        this.#deps.logger.error({ err: error, turnId: this.id }, 'turn failed on a defect')
    }
    if (this.#abandoned.signal.aborted) failure = clientGone()
    return this.#store(failure)
  }

  /** Resolves with what went wrong after the engine had begun to answer. */
  async #relay(signal: AbortSignal): Promise<Failure | undefined> {
    const { weights } = this.#deps
    const sent = weights.position
    const continuation = await this.#continue(signal)
    const promptIds = continuation?.kind === 'extends' ? continuation.promptIds : undefined
    if (promptIds !== undefined) this.#capture.expectPrompt(promptIds)
    this.#notes = notesOf(this.#request, this.#quirks, continuation)
    const reply = await this.#deps.upstream.send(this.#request, {
      signal,
      sessionKey: this.#session.id,
      promptMemory: this.#session.promptMemory,
      promptIds,
      weights,
    })
    this.#reply = reply
    this.#logIntent(this.#request.wire.text)
    let failure: Failure | undefined
    let reported: string | undefined
    for await (const events of reply.events) {
      const arrived = reply.arrived?.() ?? weights.position
      if (events[0]?.type === 'answer-start') reported = events[0].weightVersion
      const range = weights.between(sent, arrived, reported)
      for (const event of events) {
        this.#capture.add(event, range)
        if (event.type === 'answer-error') failure = event.failure
      }
      if (this.#firstTokenAt === undefined && this.#capture.hasTokens) this.#firstTokenAt = this.#session.now()
      for (const listener of this.#listeners) {
        const ready = listener.deliver(events)
        if (ready !== undefined) await ready
      }
    }
    return failure
  }

  /** The prompt as ids, where it goes on from an earlier call; undefined where the engine cannot be given ids. */
  #continue(signal: AbortSignal): Promise<Continuation | undefined> {
    return findContinuation(this.#request, this.#session, this.#deps.upstream, signal)
  }

  async #store(failure: Failure | undefined): Promise<TurnEnding> {
    if (!this.#isLogged) this.#logIntent(shortenRequest(this.#request.wire.text))
    const response = this.#capture.toResponse()
    const steeredBy = steeringOf(this.#request)
    const droppedFields = this.#reply?.dropped ?? []
    const end: TurnEnd = {
      turnId: this.id,
      endedAt: this.#session.now(),
      // Read at the end: a replica that fails early is replaced, and the reply then describes the second one.
      forced: { ...this.#reply?.forced, ...this.#notes },
      ...(steeredBy.length === 0 ? {} : { steeredBy }),
      ...(droppedFields.length === 0 ? {} : { droppedFields }),
      ...(this.#reply?.sampling === undefined
        ? {}
        : { sampling: { asked: this.#request.sampling, ...this.#reply.sampling } }),
      ...(this.#firstTokenAt === undefined ? {} : { firstTokenAt: this.#firstTokenAt }),
      ...(response === undefined ? {} : { response }),
      ...(failure === undefined ? {} : { failure }),
    }
    if (response !== undefined && failure === undefined) {
      this.#session.memory.remember(this.#request, response)
      this.#session.continuations?.remember(this.id, this.#request, response)
    }
    await this.#session.log.appendEnd(end)
    this.#deps.metrics.countTurn({
      response,
      failure,
      startedAt: this.#startedAt,
      firstTokenAt: this.#firstTokenAt,
      endedAt: end.endedAt,
    })
    this.#deps.onTurnEnd?.({ sessionId: this.#session.id, tokens: sampledIn(response) })
    const { broken } = this.#session.log
    if (broken) {
      this.#deps.logger.error({ sessionId: this.#session.id, turnId: this.id, failure: broken }, 'turn not stored')
    }
    return { response, failure }
  }
}

function sampledIn(response: TurnResponse | undefined): number {
  return (response?.choices ?? []).reduce((sum, { ids }) => sum + ids.length, 0)
}

/** What the gateway itself did to a request, beside what its adapter did. */
function notesOf(
  { purpose }: TurnRequest,
  quirks: readonly string[],
  continuation: Continuation | undefined,
): Record<string, unknown> {
  return {
    ...(purpose === undefined ? {} : { purpose }),
    ...(quirks.length === 0 ? {} : { quirks }),
    ...(continuation?.kind === 'extends' ? { continues: continuation.of } : {}),
    ...(continuation?.kind === 'fresh' ? { begins: continuation.reason } : {}),
  }
}

/** Whatever else broke, once the harness has gone that is the reason the turn ended. */
function clientGone(): Failure {
  return { code: 'request.client-gone', message: 'The harness closed the call.', status: 499 }
}
