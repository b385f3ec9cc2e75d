import { once } from 'node:events'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { setTimeout } from 'node:timers/promises'
import { RolloutError, toFailure } from '../../model/failure.ts'
import { createCaller } from './caller.ts'
import { createDetector, guessDialect, type Detected } from './detect.ts'
import type { Dialect, RenderedError, RequestContext } from '../dialects/dialect.ts'
import type { Caller } from './answer-writer.ts'
import type { BodyBudget } from './body-budget.ts'
import { countPrompt } from '../tokens/find-continuation.ts'
import { handleTurn, readAsEngine, type TurnDeps } from '../handle-turn.ts'
import type { GatewayOptions } from '../gateway.ts'
import { logRefusal } from '../sessions/log-refusal.ts'
import { readJsonBody, type BodyLimits } from './read-body.ts'
import type { Session, Sessions } from '../sessions/sessions.ts'
import { isFull, storeFull } from '../sessions/store-full.ts'

export interface AppDeps extends TurnDeps {
  sessions: Sessions
  /** Returns the only session that a connection may use; undefined for a connection that any key may use. */
  boundSession?: (socket: Socket) => string | undefined
  dialects: readonly [Dialect, ...Dialect[]]
  limits: BodyLimits
  /** Unix milliseconds. */
  now: () => number
  bodyBudget: BodyBudget
  /** Limit of the calls of one session in flight. */
  sessionCalls: number
  onBusy?: GatewayOptions['onBusy']
}

/** The data plane: the only part of the gateway that a sandbox can reach. */
export function createApp(deps: AppDeps): RequestListener {
  const detect = createDetector(deps.dialects)
  return (request, response) => {
    void serve(request, response, detect, deps)
  }
}

async function serve(
  request: IncomingMessage,
  response: ServerResponse,
  detect: ReturnType<typeof createDetector>,
  deps: AppDeps,
): Promise<void> {
  const caller = createCaller(response)
  let dialect = guessDialect(deps.dialects, { url: request.url ?? '', headers: request.headers })
  try {
    const { method = '', url = '', headers } = request
    const detected = detect({ method, url, headers })
    dialect = detected.dialect
    const session = deps.sessions.authenticate(detected.sessionId, detected.key)
    const bound = deps.boundSession?.(request.socket)
    if (bound !== undefined && bound !== session.id) throw otherSession()
    assertNotRefused(session, dialect, deps)
    assertCallLimit(session, deps.sessionCalls)
    // Told before the request is looked at: a process that dies of it has told.
    if (session.inFlight.size === 0) deps.onBusy?.({ sessionId: session.id, isBusy: true })
    await track(session, answer(request, caller, detected, session, deps), deps)
  } catch (error) {
    const failure = toFailure(error)
    if (failure.code === 'internal.bug') deps.logger.error({ err: error }, 'request failed on a defect')
    else deps.logger.info({ method: request.method, url: request.url, failure }, 'request rejected')
    await reject(request, response, dialect.renderError(failure))
  }
}

function otherSession(): RolloutError {
  return new RolloutError('request.unauthorized', 'This connection belongs to another session.')
}

/** Checked before the body is read, because reading a body may be what kills the gateway process. */
function assertNotRefused(session: Session, { id }: Dialect, { ids }: AppDeps): void {
  const { refusal } = session
  if (refusal === undefined) return
  logRefusal(session, { dialect: id, model: '', stream: false, request: '{}' }, refusal, ids)
  const { code, message, ...fields } = refusal
  throw new RolloutError(code, message, fields)
}

function assertCallLimit({ inFlight }: Session, limit: number): void {
  if (inFlight.size < limit) return
  const message = `This session has ${inFlight.size} calls in flight, which is its limit. Try again when one of its calls has ended.`
  throw new RolloutError('request.over-quota', message, { retryAfterSeconds: RETRY_AFTER_SECONDS })
}

const RETRY_AFTER_SECONDS = 5

/** Closing a session waits for the tracked requests. */
async function track({ id, inFlight }: Session, work: Promise<void>, { onBusy }: AppDeps): Promise<void> {
  inFlight.add(work)
  try {
    await work
  } finally {
    inFlight.delete(work)
    if (inFlight.size === 0) onBusy?.({ sessionId: id, isBusy: false })
  }
}

async function answer(
  request: IncomingMessage,
  caller: Caller,
  { dialect, context: detected }: Detected,
  session: Session,
  deps: AppDeps,
): Promise<void> {
  const context: RequestContext = {
    ...detected,
    sealer: session.sealer,
    recall: (id) => session.answerHistory.recall(id),
    parsedParts: session.parsedPartsOf(dialect.id),
  }
  switch (context.route.kind) {
    case 'generate': {
      if (isFull(session.log)) throw storeFull()
      using held = deps.bodyBudget.open(session.id, caller.signal)
      const body = await readJsonBody(request, deps.limits, session.parsedBodies, held)
      // The budget is held until the call has ended: its text and parsed value stay in memory until then.
      await handleTurn({ session, dialect, body, context, caller }, deps)
      return
    }
    case 'count-tokens': {
      using held = deps.bodyBudget.open(session.id, caller.signal)
      const body = await readJsonBody(request, deps.limits, session.parsedBodies, held)
      const { request: readable } = readAsEngine(dialect.parseRequest(body, context), session, deps)
      const tokens = await countPrompt(readable, session, deps.upstream, caller.signal)
      await caller.sendJson(200, dialect.renderTokenCount(tokens))
      return
    }
    case 'list-models': {
      const models = await deps.upstream.listModels(caller.signal)
      await caller.sendJson(200, dialect.renderModels(models, createdAt(deps)))
      return
    }
    case 'get-model': {
      const model = context.wildcards[0] ?? ''
      const models = await deps.upstream.listModels(caller.signal)
      if (!models.includes(model)) {
        throw new RolloutError('request.unknown-route', `The model '${model}' does not exist.`, { param: 'model' })
      }
      await caller.sendJson(200, dialect.renderModel(model, createdAt(deps)))
      return
    }
  }
}

async function reject(request: IncomingMessage, response: ServerResponse, error: RenderedError): Promise<void> {
  if (response.headersSent || response.destroyed) return
  const text = JSON.stringify(error.body)
  const length = Buffer.byteLength(text)
  const headers = { ...error.headers, 'content-type': 'application/json', 'content-length': length }
  if (request.complete) {
    response.writeHead(error.status, headers).end(text)
    return
  }
  // Closing a socket with unread bytes resets it, and the response in flight is lost. So the whole response is sent first,
  // and the bytes that the client still sends are discarded for some time.
  response.writeHead(error.status, { ...headers, connection: 'close' }).write(text)
  request.resume()
  await Promise.race([once(request, 'close'), setTimeout(LINGER_MS, undefined, { ref: false })]).catch(() => {})
  response.end()
  request.destroy()
}

const LINGER_MS = 5000

function createdAt(deps: AppDeps): number {
  return Math.floor(deps.now() / 1000)
}

/**
 * Codex tries a WebSocket first. On status 426 it falls back to plain requests at once; on any other it tries seven times.
 */
export function rejectUpgrade(_request: IncomingMessage, socket: Duplex): void {
  // Node removes its own error listener before this event. Without a listener, a reset connection ends the process.
  socket.on('error', () => socket.destroy())
  socket.end('HTTP/1.1 426 Upgrade Required\r\nconnection: close\r\ncontent-length: 0\r\n\r\n')
}
