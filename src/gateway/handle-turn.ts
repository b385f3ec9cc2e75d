import { hash } from 'node:crypto'
import type { TurnRequest } from '../model/turn.ts'
import { assertAdmissible } from './http/admit-request.ts'
import { createAnswerWriter, type AnswerWriter, type Caller } from './http/answer-writer.ts'
import type { Dialect, JsonBody, RequestContext } from './dialects/dialect.ts'
import { LiveTurn, type TurnDeps } from './live-turn.ts'
import { assertLogRoom } from './sessions/log-limit.ts'
import { applyQuirks } from './quirks/index.ts'
import type { Session } from './sessions/sessions.ts'

export interface TurnCall {
  session: Session
  dialect: Dialect
  context: RequestContext
  body: JsonBody
  caller: Caller
}

/**
 * One model call, top to bottom: parse, restore what the harness printed anew, send (or join the call this one repeats),
 * relay while a copy is captured, and let the end out once the turn is stored.
 */
export async function handleTurn(call: TurnCall, deps: TurnDeps): Promise<void> {
  const { session, dialect, context, body, caller } = call
  const { request: readable, applied } = readAsEngine(dialect.parseRequest(body, context), session, deps)
  const request = { ...readable, forcedSampling: session.sampling }
  assertLogRoom(session, request, deps)
  const writer = createAnswerWriter({ dialect, context, request, caller })
  const turn = await joinOrBegin(session, { request, quirks: applied }, context, writer, deps)
  const leave = (): void => turn.leave(writer)
  caller.signal.addEventListener('abort', leave)
  if (caller.signal.aborted) leave()
  const ending = await turn.ended
  caller.signal.removeEventListener('abort', leave)
  turn.noteDelivery(await writer.finish(ending))
}

/**
 * The request as the engine reads it: with sampled tool arguments, and without the bytes that quirk rules take out. Token
 * counts use the same function, so that a count is the prompt length of the call. Throws for a request that no engine may
 * be sent.
 */
export function readAsEngine(
  asked: TurnRequest,
  session: Session,
  deps: Pick<TurnDeps, 'quirks'>,
): { request: TurnRequest; applied: string[] } {
  assertAdmissible(asked)
  return applyQuirks(session.memory.restore(asked), deps.quirks)
}

/**
 * A harness that tries again while its first call is still under way gets that call's answer; a second generation would
 * cost the engine twice and leave an answer nobody reads. Equal bodies alone are no retry: agents sample several answers
 * to one prompt. So the harness has to say it, by an idempotency key or its SDK's retry count.
 */
async function joinOrBegin(
  session: Session,
  { request, quirks }: { request: TurnRequest; quirks: readonly string[] },
  context: RequestContext,
  writer: AnswerWriter,
  deps: TurnDeps,
): Promise<LiveTurn> {
  const { headers } = context
  const digest = hash('sha1', request.wire.text, 'base64')
  const key = typeof headers['idempotency-key'] === 'string' ? `key ${headers['idempotency-key']}` : undefined
  const isRetry = Number(headers['x-stainless-retry-count'] ?? 0) > 0
  const running = session.live.get(key ?? digest)
  if (running !== undefined && (key !== undefined || isRetry)) {
    await running.join(writer)
    return running
  }
  const retryOf = key !== undefined || isRetry ? session.lastTurns.get(digest) : undefined
  const turn = new LiveTurn(session, { request, quirks, headers: keptHeaders(headers), retryOf }, writer, deps)
  const names = key === undefined ? [digest] : [digest, key]
  for (const name of names) session.live.set(name, turn)
  session.lastTurns.set(digest, turn.id)
  void turn.ended.finally(() => {
    for (const name of names) if (session.live.get(name) === turn) session.live.delete(name)
  })
  return turn
}

/** Who in the harness asked (sub-agents, threads, retries) shows in headers. Keys never do. */
const NOT_KEPT =
  /^(authorization|x-api-key|x-goog-api-key|cookie|proxy-authorization|host|connection|content-length|accept.*)$/
const LONGEST_HEADER = 2000

function keptHeaders(headers: RequestContext['headers']): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) => {
      if (NOT_KEPT.test(name) || value === undefined) return []
      return [[name, (Array.isArray(value) ? value.join(', ') : value).slice(0, LONGEST_HEADER)]]
    }),
  )
}
