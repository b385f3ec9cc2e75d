import type { Dispatcher } from 'undici'
import { toFailure } from '../../../model/failure.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { ChatFields } from './chat-fields.ts'
import { imposedSampling, renderChatBody } from './chat-request.ts'
import { readRefusal, refusalError, type EngineHttp } from './engine-http.ts'

export interface ChatPost {
  request: TurnRequest
  /** Set on top of the request. The task's sampling and what is lowered here are written back, so that the log has them. */
  forced: Record<string, unknown>
  /** What the harness may set on this engine. */
  fields: ChatFields
  stream: boolean
  signal: AbortSignal
  countTokens: () => Promise<number>
}

export interface PostedChat {
  response: Dispatcher.ResponseData
  /** Paths of fields that the harness sent and the engine did not get. */
  dropped: readonly string[]
}

/**
 * Posts a chat request and resolves with an answer that has begun. Engines refuse an answer limit that does not fit
 * beside the prompt instead of lowering it, and harnesses ask for far more than a small context holds: so it is lowered
 * here. Rejects with what else the engine refused.
 */
export async function postChat(http: EngineHttp, post: ChatPost): Promise<PostedChat> {
  const accept = post.stream ? 'text/event-stream' : 'application/json'
  Object.assign(post.forced, { ...imposedSampling(post.request), ...post.forced })
  for (let attempt = 0; ; attempt++) {
    const { text: body, dropped } = renderChatBody(post.request, post.forced, post.fields)
    const response = await http.call('/v1/chat/completions', { body, accept, signal: post.signal })
    if (response.statusCode === 200) return { response, dropped }
    const refusal = await readRefusal(response)
    const room = refusal.status === 400 && attempt < 2 ? await findRoom(refusal.message, post) : undefined
    if (room === undefined) throw refusalError(refusal, http.base)
    Object.assign(post.forced, { max_tokens: room, max_completion_tokens: room })
  }
}

/** How many tokens an answer may have; undefined when the refusal was about something else, or there is no room at all. */
async function findRoom(message: string, { request, forced, countTokens }: ChatPost): Promise<number | undefined> {
  const asked = numberOf(forced['max_tokens']) ?? request.forcedSampling?.maxTokens ?? request.sampling.maxTokens
  if (asked === undefined) return undefined
  const limit = readLimit(message)
  if (limit === undefined) return undefined
  if ('answer' in limit) return limit.answer < asked ? limit.answer : undefined
  const prompt = limit.prompt ?? (await countTokens().catch((error: unknown) => orNoRoom(error, limit.context)))
  const room = limit.context - prompt
  return room > 0 && room < asked ? room : undefined
}

/** A prompt that alone is too long is the better thing to say than that the answer limit was. */
function orNoRoom(error: unknown, context: number): number {
  if (toFailure(error).code === 'request.context-overflow') throw error
  return context
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined
}

type Limit = { answer: number } | { context: number; prompt: number | undefined }

/** What a refusal says about lengths, in the words of the engines we know. */
export function readLimit(message: string): Limit | undefined {
  // SGLang and OpenAI, of an answer limit alone.
  const answer = /supports at most (\d+) completion tokens/i.exec(message)?.[1]
  if (answer !== undefined) return { answer: Number(answer) }
  const context =
    /^max(?:_completion)?_tokens=\d+ cannot be greater than max_model_len=\D*(\d+)/.exec(message)?.[1] ??
    /maximum context length (?:is|of) (\d+) tokens/i.exec(message)?.[1]
  if (context === undefined) return undefined
  const prompt =
    /prompt contains (?:at least )?(\d+) (?:input )?tokens/i.exec(message)?.[1] ??
    /(\d+) tokens from the input messages/i.exec(message)?.[1] ??
    /\((\d+) in the messages/i.exec(message)?.[1]
  // vLLM stops counting one past what would have fitted, so its count is of no use then.
  const isBound = /prompt contains at least/i.test(message)
  return { context: Number(context), prompt: prompt === undefined || isBound ? undefined : Number(prompt) }
}
