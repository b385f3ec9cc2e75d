import type { Logger } from 'pino'
import { toFailure, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import { toPolicyVersion } from '../model/policy.ts'
import { steeringOf } from '../model/steering.ts'
import type { TurnRequest } from '../model/turn.ts'
import type { Dialect, JsonBody, RequestContext } from './dialects/dialect.ts'
import { assertAdmissible } from './http/admit-request.ts'
import { createAnswerWriter, type Caller } from './http/answer-writer.ts'
import { applyQuirks } from './quirks/index.ts'
import type { Quirk } from './quirks/quirk.ts'
import type { Gate } from './sessions/gate.ts'
import { intentOf, LiveTurn, type TurnEnding } from './sessions/live-turn.ts'
import { identifyRequest, storedHeaders } from './sessions/live-turns.ts'
import { assertLogLimit } from './sessions/log-limit.ts'
import type { Metrics } from './sessions/metrics.ts'
import type { Session } from './sessions/sessions.ts'
import type { WeightHistory } from './sessions/weight-history.ts'
import type { Continuation } from './tokens/continuation.ts'
import { findContinuation } from './tokens/find-continuation.ts'
import type { Upstream, UpstreamReply } from './upstreams/upstream.ts'

export interface TurnCall {
  session: Session
  dialect: Dialect
  context: RequestContext
  body: JsonBody
  caller: Caller
}

/** Reported when a model call has ended and is stored. */
export interface TurnReport {
  sessionId: string
  /** Number of sampled tokens. */
  tokens: number
  /** Oldest policy version of a sampled token; absent if unknown. */
  oldestVersion?: number | undefined
}

export interface TurnDeps {
  upstream: Upstream
  gate: Gate
  weights: WeightHistory
  metrics: Metrics
  /** Absent: the built-in quirks. */
  quirks?: readonly Quirk[]
  ids: IdSource
  logger: Logger
  /** Limit of the call log of one session. Absent: none. */
  logBytes?: number
  /** See `GatewayOptions.onTurnEnd`. */
  onTurnEnd?: (turn: TurnReport) => void
}

/** One model call, top to bottom. `generate` continues it on the engine's side. */
export async function handleTurn(call: TurnCall, deps: TurnDeps): Promise<void> {
  const { session, dialect, context, body, caller } = call

  // Parse the body, and restore what the harness changed since the model wrote it.
  const { request: readable, applied: quirks } = readAsEngine(dialect.parseRequest(body, context), session, deps)
  const request = { ...readable, forcedSampling: session.sampling }
  assertLogLimit(session, request, deps)
  const writer = createAnswerWriter({ dialect, context, request, caller })

  // Join the call in flight that this request repeats, or begin a new call.
  const identity = identifyRequest(request, context.headers)
  const turn = session.liveTurns.find(identity) ?? begin()
  const ending = await turn.join(writer, caller.signal)

  // Release the end of the answer, which the writer holds back until the turn is stored.
  turn.logDelivery(await writer.finish(ending))

  function begin(): LiveTurn {
    const intent = intentOf(request, deps.ids.next('turn'), session.now())
    const origin = { headers: storedHeaders(context.headers), retryOf: session.liveTurns.findRetried(identity) }
    const begun = new LiveTurn({ ...intent, ...origin }, session.log, (live) =>
      generate({ turn: live, session, request, quirks, notes: {} }, deps),
    )
    session.liveTurns.add(identity, begun)
    return begun
  }
}

/** The engine's side of a model call. Runs once, even if several harness requests joined the call. */
async function generate(generation: Generation, deps: TurnDeps): Promise<TurnEnding> {
  const { turn } = generation
  let failure: Failure | undefined
  try {
    failure = await deps.gate.pass(turn.signal, async () => {
      const sentAt = deps.weights.position
      const reply = await send(generation, deps)
      return captureAndRelay(generation, reply, sentAt, deps)
    })
  } catch (error) {
    failure = toFailure(error)
    if (failure.code === 'internal.bug') deps.logger.error({ err: error, turnId: turn.id }, 'turn failed on a defect')
  }
  if (turn.signal.aborted) failure = clientGone()
  return store(generation, failure, deps)
}

/** One call to the engine on its way through the steps below. */
interface Generation {
  readonly turn: LiveTurn
  readonly session: Session
  readonly request: TurnRequest
  /** Rules that changed what the engine reads. */
  readonly quirks: readonly string[]
  /** What the gateway did to the request besides its upstream's `forced`. */
  notes: Readonly<Record<string, unknown>>
  /** Absent until the engine has begun to answer. */
  reply?: UpstreamReply
  /** Unix milliseconds. */
  firstTokenAt?: number
}

/** Sends the request, with its prompt as token ids where it continues an earlier call. */
async function send(generation: Generation, { upstream, weights }: TurnDeps): Promise<UpstreamReply> {
  const { turn, session, request } = generation
  const { signal } = turn
  const continuation = await findContinuation(request, session, upstream, signal)
  const promptIds = continuation?.kind === 'extends' ? continuation.promptIds : undefined
  if (promptIds !== undefined) turn.capture.expectPrompt(promptIds)
  generation.notes = notesOf(generation, continuation)
  const { id: sessionKey, promptIdCache } = session
  const reply = await upstream.send(request, { signal, sessionKey, promptIdCache, promptIds, weights })
  generation.reply = reply
  turn.logRequest({ isAccepted: true })
  return reply
}

/** Resolves with the failure that ended the answer after the engine had begun to send it. */
async function captureAndRelay(
  generation: Generation,
  reply: UpstreamReply,
  sentAt: number,
  { weights }: TurnDeps,
): Promise<Failure | undefined> {
  const { turn, session } = generation
  let failure: Failure | undefined
  let reported: string | undefined
  for await (const events of reply.events) {
    const arrivedAt = reply.arrived?.() ?? weights.position
    if (events[0]?.type === 'answer-start') reported = events[0].weightVersion
    const range = weights.between(sentAt, arrivedAt, reported)
    for (const event of events) {
      turn.capture.add(event, range)
      if (event.type === 'answer-error') failure = event.failure
    }
    if (generation.firstTokenAt === undefined && turn.capture.hasTokens) generation.firstTokenAt = session.now()
    for (const listener of turn.listeners) {
      const ready = listener.deliver(events)
      if (ready !== undefined) await ready
    }
  }
  return failure
}

/** Stores the turn, complete or partial, in the call log, and what later calls of the session continue from. */
async function store(generation: Generation, failure: Failure | undefined, deps: TurnDeps): Promise<TurnEnding> {
  const { turn, session, request, reply, firstTokenAt } = generation
  turn.logRequest({ isAccepted: false })
  const response = turn.capture.toResponse()
  const endedAt = session.now()
  if (response !== undefined && failure === undefined) {
    session.answerHistory.remember(request, response)
    session.continuations?.remember(turn.id, request, response)
  }
  const steeredBy = steeringOf(request)
  const droppedFields = reply?.dropped ?? []
  await session.log.appendEnd({
    turnId: turn.id,
    endedAt,
    // Read at the end: a replica that fails early is replaced, and the reply then describes the replacement.
    forced: { ...reply?.forced, ...generation.notes },
    steeredBy: steeredBy.length === 0 ? undefined : steeredBy,
    droppedFields: droppedFields.length === 0 ? undefined : droppedFields,
    sampling: reply?.sampling && { asked: request.sampling, ...reply.sampling },
    firstTokenAt,
    response,
    failure,
  })
  deps.metrics.countTurn({ response, failure, startedAt: turn.startedAt, firstTokenAt, endedAt })
  const tokens = (response?.choices ?? []).reduce((sum, { ids }) => sum + ids.length, 0)
  deps.onTurnEnd?.({ sessionId: session.id, tokens, oldestVersion: toPolicyVersion(response?.weightVersion) })
  const { broken } = session.log
  if (broken) deps.logger.error({ sessionId: session.id, turnId: turn.id, failure: broken }, 'turn not stored')
  return { response, failure }
}

/**
 * The request as the engine reads it: with tool arguments as they were sampled, and without the text that quirk rules
 * remove. Token counts use the same function, so that a count is the prompt length of the call. Throws for a request that
 * must not be sent to an engine.
 */
export function readAsEngine(
  request: TurnRequest,
  session: Session,
  deps: Pick<TurnDeps, 'quirks'>,
): { request: TurnRequest; applied: string[] } {
  assertAdmissible(request)
  return applyQuirks(session.answerHistory.restore(request), deps.quirks)
}

function notesOf(
  { request: { purpose }, quirks }: Generation,
  continuation: Continuation | undefined,
): Record<string, unknown> {
  return {
    purpose,
    quirks: quirks.length === 0 ? undefined : quirks,
    continues: continuation?.kind === 'extends' ? continuation.of : undefined,
    begins: continuation?.kind === 'fresh' ? continuation.reason : undefined,
  }
}

/** Takes precedence over every other failure of the turn. */
function clientGone(): Failure {
  return { code: 'request.client-gone', message: 'The harness closed the call.', status: 499 }
}
