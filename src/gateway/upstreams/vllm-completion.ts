import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { WireFields } from '../wire-event.ts'
import { readJsonObject, readWhole, type Translated } from './wire/chat-answer.ts'
import type { ChatFields } from './wire/chat-fields.ts'
import { sentSampling } from './wire/chat-request.ts'
import { answerLimit, completionSampling, toChatChoice } from './wire/completion-call.ts'
import { readRejection, rejectionError, type EngineHttp } from './wire/engine-http.ts'
import { logprobModeOf, toEngineSampling } from './wire/engine-sampling.ts'
import type { EngineSend } from './wire/engine-upstream.ts'
import type { Capabilities, UpstreamReply } from './upstream.ts'

interface CompletionRequestFormat {
  /** Absent: the name in the request of the harness. */
  model: string | undefined
  fields: ChatFields
  documentedSampling: DefaultSampling
}

/** Sends a prompt of ids to vLLM's completions, the only endpoint that accepts ids before 0.27. */
export async function sendCompletion(
  http: EngineHttp,
  request: TurnRequest,
  { promptIds, signal, capabilities }: EngineSend & { promptIds: Int32Array },
  { model = request.model, fields, documentedSampling }: CompletionRequestFormat,
): Promise<UpstreamReply> {
  const sent = sentSampling(request, {}, fields)
  const limit = await answerLimit(http, { model, prompt: promptIds, limit: sent.maxTokens }, capabilities, signal)
  const forced: Record<string, unknown> = {
    model,
    ...completionSampling(sent),
    repetition_penalty: sent.repetitionPenalty,
    n: sent.n,
    max_tokens: limit,
    return_token_ids: true,
    logprobs: 0,
    add_special_tokens: false,
    // The tags of tool calls are special tokens of some models.
    skip_special_tokens: false,
    spaces_between_special_tokens: false,
  }
  const body = JSON.stringify({ ...forced, prompt: Array.from(promptIds) })
  const response = await http.call('/v1/completions', { body, signal })
  if (response.statusCode !== 200) throw rejectionError(await readRejection(response), http.base)
  const load = async (): Promise<Translated> =>
    translateCompletion(await readJsonObject(response), request, capabilities)
  const logprobMode = logprobModeOf(request, capabilities)
  const events = readWhole(load, { base: http.base, signal, forStream: request.stream, logprobMode })
  const sampling = toEngineSampling(request, { forced: {}, fields }, documentedSampling, capabilities)
  const marks = { endpoint: '/v1/completions', prompt: `${promptIds.length} ids`, parsed_by: 'gateway' }
  return { forced: { ...forced, ...marks }, dropped: [], sampling, events }
}

const Completion = z.looseObject({
  id: z.string(),
  choices: z
    .array(
      z.looseObject({
        index: z.int(),
        text: z.string(),
        finish_reason: z.string().nullish(),
        stop_reason: z.unknown(),
        logprobs: z
          .looseObject({ tokens: z.array(z.string()), token_logprobs: z.array(z.number().nullable()) })
          .nullish(),
        prompt_token_ids: z.array(z.int()).nullish(),
        token_ids: z.array(z.int()).nullish(),
      }),
    )
    .min(1),
})

/** Translates a completion to a chat answer. */
function translateCompletion(wire: WireFields, request: TurnRequest, capabilities: Capabilities): Translated {
  const parsed = Completion.safeParse(wire)
  if (!parsed.success) throw new RolloutError('upstream.bad-stream', 'The engine answered 200 with no completion.')
  const { choices, ...rest } = parsed.data
  const toChoice = ({ index, text, finish_reason, stop_reason, logprobs, token_ids }: (typeof choices)[number]) => ({
    index,
    ...toChatChoice({ id: `${rest.id}_${index}`, text, finishReason: finish_reason ?? 'stop' }, request, capabilities),
    stop_reason,
    token_ids,
    logprobs: {
      content: logprobs?.tokens.map((token, i) => ({ token, logprob: logprobs.token_logprobs[i], top_logprobs: [] })),
    },
  })
  return {
    answer: {
      ...rest,
      object: 'chat.completion',
      prompt_token_ids: choices[0]?.prompt_token_ids,
      choices: choices.map(toChoice),
    },
  }
}
