import type { Dispatcher } from 'undici'
import { toFailure } from '../../../model/failure.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { ChatFields } from './chat-fields.ts'
import { imposedSampling, renderChatBody } from './chat-request.ts'
import { readRejection, rejectionError, type EngineHttp } from './engine-http.ts'

export interface ChatPost {
  request: TurnRequest
  /** Overrides fields of the request. The task's sampling and a lowered limit are added, so that the log contains them. */
  forced: Record<string, unknown>
  fields: ChatFields
  stream: boolean
  signal: AbortSignal
  countTokens: () => Promise<number>
}

export interface PostedChat {
  response: Dispatcher.ResponseData
  /** Paths of fields of the harness's request that were not sent to the engine. */
  dropped: readonly string[]
}

/**
 * Posts a chat request and resolves when the answer has begun. Engines reject an answer limit that exceeds the context
 * together with the prompt, and harnesses set limits far above a small context: so the limit is lowered here and the
 * request repeated. Rejects with any other error of the engine.
 */
export async function postChat(http: EngineHttp, post: ChatPost): Promise<PostedChat> {
  const accept = post.stream ? 'text/event-stream' : 'application/json'
  Object.assign(post.forced, { ...imposedSampling(post.request), ...post.forced })
  for (let attempt = 0; ; attempt++) {
    const { text: body, dropped } = renderChatBody(post.request, post.forced, post.fields)
    const response = await http.call('/v1/chat/completions', { body, accept, signal: post.signal })
    if (response.statusCode === 200) return { response, dropped }
    const rejection = await readRejection(response)
    const limit = rejection.status === 400 && attempt < 2 ? await findAnswerLimit(rejection.message, post) : undefined
    if (limit === undefined) throw rejectionError(rejection, http.base)
    Object.assign(post.forced, { max_tokens: limit, max_completion_tokens: limit })
  }
}

/** Returns the answer limit that fits; undefined when the error has another cause, or when no token fits. */
async function findAnswerLimit(
  message: string,
  { request, forced, countTokens }: ChatPost,
): Promise<number | undefined> {
  const requested = numberOf(forced['max_tokens']) ?? request.forcedSampling?.maxTokens ?? request.sampling.maxTokens
  if (requested === undefined) return undefined
  const limit = readLimit(message)
  if (limit === undefined) return undefined
  if ('answer' in limit) return limit.answer < requested ? limit.answer : undefined
  const prompt =
    limit.prompt ?? (await countTokens().catch((error: unknown) => assumeFullContext(error, limit.context)))
  const rest = limit.context - prompt
  return rest > 0 && rest < requested ? rest : undefined
}

/** A prompt that alone exceeds the context is the more helpful error than the answer limit. */
function assumeFullContext(error: unknown, context: number): number {
  if (toFailure(error).code === 'request.context-overflow') throw error
  return context
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined
}

type Limit = { answer: number } | { context: number; prompt: number | undefined }

/** Reads the limits in an error message of vLLM, SGLang, llama.cpp or OpenAI. */
export function readLimit(message: string): Limit | undefined {
  // SGLang and OpenAI, when the answer limit alone is too large.
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
  // vLLM stops counting one token past the limit, so its count is only a lower bound.
  const isBound = /prompt contains at least/i.test(message)
  return { context: Number(context), prompt: prompt === undefined || isBound ? undefined : Number(prompt) }
}
