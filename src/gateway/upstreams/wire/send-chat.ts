import type { DefaultSampling } from '../../../model/turn-sampling.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { UpstreamReply } from '../upstream.ts'
import { readAnswer, type AnswerReading } from './chat-answer.ts'
import type { ChatFields } from './chat-fields.ts'
import { requestedTopLogprobs } from './chat-request.ts'
import type { EngineHttp } from './engine-http.ts'
import { logprobModeOf, toEngineSampling } from './engine-sampling.ts'
import type { EngineSend } from './engine-upstream.ts'
import { postChat } from './post-chat.ts'

export interface ChatFormat {
  fields: ChatFields
  /** Fields that capture needs. */
  forced: Record<string, unknown>
  /** Returns the field that contains a prompt of ids; absent: the engine accepts none. */
  promptField?: (ids: unknown) => Record<string, unknown>
  documentedSampling: DefaultSampling
  reading?: Pick<AnswerReading, 'translate' | 'translateChunk' | 'fast'>
}

/** Sends a chat request and reads its answer. */
export async function sendChat(
  http: EngineHttp,
  request: TurnRequest,
  { signal, promptIds, weights, stream, capabilities, countTokens }: EngineSend,
  { fields, forced, promptField, documentedSampling, reading }: ChatFormat,
): Promise<UpstreamReply> {
  if (promptIds !== undefined) Object.assign(forced, promptField?.(Array.from(promptIds)))
  const { response, dropped } = await postChat(http, { request, forced, fields, stream, signal, countTokens })
  const answer = readAnswer(response, {
    base: http.base,
    signal,
    forStream: request.stream,
    logprobMode: logprobModeOf(request, capabilities),
    weights,
    ...reading,
  })
  // A prompt may have a hundred thousand ids, and the log contains them already.
  if (promptIds !== undefined) Object.assign(forced, promptField?.(`${promptIds.length} ids`))
  const sampling = toEngineSampling(request, { forced, fields }, documentedSampling, capabilities)
  return { forced, dropped, sampling, ...answer }
}

/** Fields that capture needs on every engine with log probabilities. */
export function captureFields(
  request: TurnRequest,
  stream: boolean,
  model: string | undefined,
): Record<string, unknown> {
  return {
    ...(model === undefined ? {} : { model }),
    logprobs: true,
    top_logprobs: requestedTopLogprobs(request),
    ...(stream ? { stream_options: { include_usage: true } } : {}),
    ...(request.stream && !stream ? { stream: false, stream_options: null } : {}),
  }
}
