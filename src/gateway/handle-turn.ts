import type { Logger } from 'pino'
import { toFailure, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { StreamEvent } from '../model/stream-event.ts'
import type { TurnRequest, TurnResponse } from '../model/turn.ts'
import type { TurnEnd } from '../store/store.ts'
import { TurnCapture } from './capture/capture-turn.ts'
import type { Dialect, JsonBody, RequestContext } from './dialects/dialect.ts'
import type { Session } from './sessions.ts'
import type { Upstream } from './upstreams/upstream.ts'

export interface TurnDeps {
  upstream: Upstream
  ids: IdSource
  now: () => number
  logger: Logger
}

/** The harness's end of the call. Writing to one that has gone is not an error; `signal` tells. */
export interface Caller {
  /** Aborted when the harness goes away before it has the whole answer. */
  readonly signal: AbortSignal
  startStream(contentType: string): void
  /** Resolves when the harness is ready for more. */
  write(text: string): Promise<void>
  /** Resolves with whether everything was handed to the network. */
  end(text?: string): Promise<boolean>
  sendJson(status: number, body: unknown, headers?: Readonly<Record<string, string>>): Promise<boolean>
  /** Ends the response so that the harness sees a broken connection. */
  cut(): void
}

/** One model call, top to bottom: parse, send, capture a copy while relaying, store, and only then let the end out. */
export async function handleTurn(
  call: { session: Session; dialect: Dialect; body: JsonBody; context: RequestContext; caller: Caller },
  deps: TurnDeps,
): Promise<void> {
  const { session, dialect, caller } = call
  const request = session.memory.restore(dialect.parseRequest(call.body, call.context))
  const turn = beginTurn(session, request, deps)
  const capture = new TurnCapture()
  let delivered = false
  try {
    const reply = await deps.upstream.send(request, { signal: caller.signal })
    turn.forced = reply.forced
    const relay = request.stream ? relayStream : relayWhole
    delivered = await relay({ dialect, context: call.context, request, caller, capture, turn }, reply.events)
  } catch (error) {
    const failure = toFailure(error)
    if (failure.code === 'internal.bug') deps.logger.error({ err: error, turnId: turn.id }, 'turn failed on a defect')
    await turn.finish(capture, failure)
    delivered = await sendError(dialect, caller, failure)
  } finally {
    session.log.appendDelivery(turn.id, delivered ? 'delivered' : 'undelivered')
  }
}

/** The bookkeeping of one turn: its intent is queued now, its end is appended once. */
class OpenTurn {
  readonly id: string
  readonly #session: Session
  readonly #request: TurnRequest
  readonly #deps: TurnDeps
  #firstTokenAt: number | undefined
  #finished = false
  forced: Readonly<Record<string, unknown>> = {}

  constructor(id: string, session: Session, request: TurnRequest, deps: TurnDeps) {
    this.id = id
    this.#session = session
    this.#request = request
    this.#deps = deps
  }

  noteTokens(capture: TurnCapture): void {
    if (this.#firstTokenAt === undefined && capture.hasTokens) this.#firstTokenAt = this.#deps.now()
  }

  /** Resolves when the turn is in the log, or the log has said that it cannot be. */
  async finish(capture: TurnCapture, failure?: Failure): Promise<TurnResponse | undefined> {
    const response = capture.toResponse()
    if (this.#finished) return response
    this.#finished = true
    const end: TurnEnd = {
      turnId: this.id,
      endedAt: this.#deps.now(),
      forced: this.forced,
      ...(this.#firstTokenAt === undefined ? {} : { firstTokenAt: this.#firstTokenAt }),
      ...(response === undefined ? {} : { response }),
      ...(failure === undefined ? {} : { failure }),
    }
    if (response !== undefined && failure === undefined) this.#session.memory.remember(this.#request, response)
    await this.#session.log.appendEnd(end)
    const { broken } = this.#session.log
    if (broken)
      this.#deps.logger.error({ sessionId: this.#session.id, turnId: this.id, failure: broken }, 'turn not stored')
    return response
  }
}

function beginTurn(session: Session, request: TurnRequest, deps: TurnDeps): OpenTurn {
  const id = deps.ids.next('turn')
  session.log.appendIntent({
    id,
    index: session.log.turns,
    dialect: request.dialect,
    startedAt: deps.now(),
    model: request.model,
    stream: request.stream,
    request: request.wire.text,
  })
  return new OpenTurn(id, session, request, deps)
}

interface Relay {
  dialect: Dialect
  context: RequestContext
  request: TurnRequest
  caller: Caller
  capture: TurnCapture
  turn: OpenTurn
}

/**
 * Frames go out as their events come in. From the last finish reason on they are held back until the turn is stored: a
 * client that ends on any of them may act on it at once.
 */
async function relayStream(relay: Relay, events: AsyncIterable<readonly StreamEvent[]>): Promise<boolean> {
  const { dialect, context, request, caller, capture, turn } = relay
  const renderer = dialect.createStreamRenderer(request, context)
  let held = ''
  let failure: Failure | undefined
  let isStarted = false
  for await (const batch of events) {
    let ready = ''
    for (const event of batch) {
      capture.add(event)
      if (event.type === 'answer-error') failure = event.failure
      const text = renderer.render(event)
      if (capture.finishedChoices >= request.sampling.n) held += text
      else ready += text
    }
    turn.noteTokens(capture)
    if (failure && !isStarted) break
    if (!isStarted) caller.startStream(dialect.streamType(request))
    isStarted = true
    if (ready !== '') await caller.write(ready)
  }
  if (caller.signal.aborted) failure = clientGone(failure)
  await turn.finish(capture, failure)
  if (failure === undefined) return caller.end(held)
  if (!isStarted) return sendError(dialect, caller, failure)
  const lastFrame = dialect.renderStreamError(failure)
  if (lastFrame === undefined) caller.cut()
  else await caller.end(lastFrame)
  return false
}

async function relayWhole(relay: Relay, batches: AsyncIterable<readonly StreamEvent[]>): Promise<boolean> {
  const { dialect, context, request, caller, capture, turn } = relay
  const events: StreamEvent[] = []
  for await (const batch of batches) events.push(...batch)
  for (const event of events) capture.add(event)
  turn.noteTokens(capture)
  const error = events.find((event) => event.type === 'answer-error')
  const failure = caller.signal.aborted ? clientGone(error?.failure) : error?.failure
  const response = await turn.finish(capture, failure)
  if (failure !== undefined || response === undefined) return sendError(dialect, caller, failure ?? noAnswer())
  return caller.sendJson(200, dialect.renderResponse(request, { response, events }, context))
}

async function sendError(dialect: Dialect, caller: Caller, failure: Failure): Promise<boolean> {
  const { status, headers, body } = dialect.renderError(failure)
  await caller.sendJson(status, body, headers)
  return false
}

function noAnswer(): Failure {
  return { code: 'upstream.bad-stream', message: 'The engine answered nothing.', status: 502 }
}

/** Whatever else broke, once the harness has gone that is the reason the turn ended. */
function clientGone(failure: Failure | undefined): Failure {
  if (failure?.code === 'request.client-gone') return failure
  return { code: 'request.client-gone', message: 'The harness closed the call.', status: 499 }
}
