import * as z from 'zod'
import { badRequest, fieldErrors, toFieldIssues } from './errors.ts'

/**
 * Request bodies of vLLM. Unknown fields are accepted, as by vLLM; null equals absent if vLLM's type allows null. Unlike
 * pydantic, "5" is not converted to 5.
 */

/** vLLM's VLLM_MAX_STOP_STRINGS. */
const MAX_STOP_STRINGS = 4
/** vLLM's VLLM_MAX_COMPLETION_PROMPTS. */
const MAX_PROMPTS = 1024

const wholeNumber = z.number().refine(Number.isInteger, { error: 'Input should be a valid integer' })
/** Checks long lists of ids in one loop. */
const ids = z.custom<number[]>(isIdList, { error: 'Input should be a list of token ids (non-negative integers)' })
const stop = z.union([z.string(), z.array(z.string()).max(MAX_STOP_STRINGS)]).nullish()
const record = z.record(z.string(), z.unknown())

const StreamOptions = z.looseObject({
  include_usage: z.boolean().nullish(),
  continuous_usage_stats: z.boolean().nullish(),
})

/** Common fields of chat and completions. */
const samplingFields = {
  model: z.string().nullish(),
  request_id: z.string().optional(),
  frequency_penalty: z.number().nullish(),
  presence_penalty: z.number().nullish(),
  repetition_penalty: z.number().nullish(),
  logit_bias: z.record(z.string(), z.number()).nullish(),
  max_tokens: z.int().nullish(),
  min_tokens: z.int().optional(),
  n: z.int().nullish(),
  seed: wholeNumber.nullish(),
  stop,
  stop_token_ids: z.array(z.int()).nullish(),
  stream: z.boolean().nullish(),
  stream_options: StreamOptions.nullish(),
  stream_interval: z.int().min(1).nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.int().nullish(),
  min_p: z.number().nullish(),
  ignore_eos: z.boolean().optional(),
  include_stop_str_in_output: z.boolean().optional(),
  skip_special_tokens: z.boolean().optional(),
  return_token_ids: z.boolean().nullish(),
  return_tokens_as_token_ids: z.boolean().nullish(),
  cache_salt: z.string().min(1).nullish(),
  priority: z.int().optional(),
  prompt_logprobs: z.int().nullish(),
  use_beam_search: z.boolean().optional(),
  logprob_token_ids: z.array(z.int()).nullish(),
  allowed_token_ids: z.array(z.int()).nullish(),
  bad_words: z.array(z.string()).nullish(),
  truncate_prompt_tokens: z.int().nullish(),
} as const

/** Sampling fields of a body, at any level. */
export type SamplingFields = z.infer<z.ZodObject<typeof samplingFields>>

const Tool = z.looseObject({
  type: z.literal('function').optional(),
  function: z.looseObject({
    name: z.string(),
    description: z.string().nullish(),
    parameters: record.nullish(),
    strict: z.boolean().nullish(),
  }),
})

const Message = z.looseObject({ role: z.string() })

const templateFields = {
  messages: z.array(Message),
  tools: z.array(Tool).nullish(),
  add_generation_prompt: z.boolean().optional(),
  continue_final_message: z.boolean().optional(),
  chat_template: z.string().nullish(),
  chat_template_kwargs: record.nullish(),
} as const

export const ChatBody = z.looseObject({
  ...samplingFields,
  ...templateFields,
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().nullish(),
  max_completion_tokens: z.int().nullish(),
  tool_choice: z.union([z.string(), z.looseObject({ function: z.looseObject({ name: z.string() }) })]).nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: z.looseObject({ type: z.string() }).nullish(),
  reasoning_effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).nullish(),
  include_reasoning: z.boolean().optional(),
  return_prompt_text: z.boolean().nullish(),
  echo: z.boolean().optional(),
  kv_transfer_params: z.looseObject({ prompt_token_ids: ids.nullish() }).nullish(),
})
export type ChatBody = z.infer<typeof ChatBody>

export const CompletionBody = z.looseObject({
  ...samplingFields,
  prompt: z.union([z.string(), ids, z.array(z.string()), z.array(ids)]).nullish(),
  logprobs: z.int().nullish(),
  echo: z.boolean().nullish(),
  suffix: z.string().nullish(),
})
export type CompletionBody = z.infer<typeof CompletionBody>

export const GenerateBody = z.looseObject({
  request_id: z.string().optional(),
  token_ids: ids,
  model: z.string().nullish(),
  stream: z.boolean().nullish(),
  stream_options: StreamOptions.nullish(),
  sampling_params: z.looseObject({ ...samplingFields, logprobs: z.int().nullish() }),
})
export type GenerateBody = z.infer<typeof GenerateBody>

export const TokenizeChatBody = z.looseObject({
  ...templateFields,
  model: z.string().nullish(),
  return_token_strs: z.boolean().nullish(),
})
export type TokenizeChatBody = z.infer<typeof TokenizeChatBody>

export const TokenizeTextBody = z.looseObject({
  model: z.string().nullish(),
  prompt: z.string(),
  return_token_strs: z.boolean().nullish(),
})

export const DetokenizeBody = z.looseObject({ model: z.string().nullish(), tokens: ids })
export const AbortBody = z.looseObject({ request_ids: z.array(z.string()).nullish() })
export const WeightVersionBody = z.looseObject({ new_version: z.string() })
export const UpdateWeightsBody = z.looseObject({
  update_info: z.looseObject({
    output_bias: z.union([z.string(), z.record(z.string(), z.number())]).nullish(),
    low_rank: z.looseObject({ rank: z.int().positive(), down: z.string(), up: z.string() }).nullish(),
  }),
  weight_version: z.string().nullish(),
})

/** Throws the error for status 400 that names the invalid fields. */
export function parseBody<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body)
  if (!parsed.success) throw fieldErrors(toFieldIssues(parsed.error, body))
  return parsed.data
}

/** Rules of vLLM's chat request that concern several fields. */
export function checkChatBody(body: ChatBody): void {
  checkStreamOptions(body)
  if (body.tools?.length === 0) {
    throw badRequest(
      '`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.',
      'tools',
    )
  }
  checkToolChoice(body)
  checkGenerationPrompt(body)
  const topLogprobs = body.top_logprobs ?? 0
  if (topLogprobs < 0 && topLogprobs !== -1) {
    throw badRequest('`top_logprobs` must be a positive value or -1.', 'top_logprobs', topLogprobs)
  }
  if (topLogprobs !== 0 && !body.logprobs) {
    throw badRequest('when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs')
  }
  if (body.chat_template != null) {
    throw badRequest('Chat template is passed with request, but --trust-request-chat-template is not set.')
  }
}

export function checkCompletionBody(body: CompletionBody): void {
  checkStreamOptions(body)
  if (body.prompt == null || body.prompt.length === 0) {
    throw badRequest('Either prompt or prompt_embeds must be provided and non-empty.', 'prompt')
  }
  const count = Array.isArray(body.prompt) && typeof body.prompt[0] !== 'number' ? body.prompt.length : 1
  if (count > MAX_PROMPTS) {
    throw badRequest(`prompt list length ${count} exceeds the maximum allowed count of ${MAX_PROMPTS}.`, 'prompt')
  }
  if (body.logprobs != null && body.logprobs < 0 && body.logprobs !== -1) {
    throw badRequest('`logprobs` must be a positive value or -1.', 'logprobs', body.logprobs)
  }
  if (body.suffix != null) throw badRequest('suffix is not currently supported')
}

export function checkGenerationPrompt(body: {
  continue_final_message?: boolean
  add_generation_prompt?: boolean
}): void {
  if (body.continue_final_message && body.add_generation_prompt) {
    throw badRequest('Cannot set both `continue_final_message` and `add_generation_prompt` to True.')
  }
}

function checkStreamOptions(body: { stream?: boolean | null; stream_options?: unknown }): void {
  if (body.stream_options && !body.stream) {
    throw badRequest('Stream options can only be defined when `stream=True`.', 'stream_options')
  }
}

function checkToolChoice({ tool_choice: choice, tools }: ChatBody): void {
  if (choice == null || choice === 'none') return
  if (tools == null) throw badRequest('When using `tool_choice`, `tools` must be set.', 'tool_choice')
  if (typeof choice === 'string') {
    if (choice === 'auto' || choice === 'required') return
    throw badRequest(
      `Invalid value for \`tool_choice\`: ${choice}! Only named tools, "none", "auto" or "required" are supported.`,
      'tool_choice',
    )
  }
  if (!tools.some((tool) => tool.function.name === choice.function.name)) {
    throw badRequest('The tool specified in `tool_choice` does not match any of the specified `tools`', 'tool_choice')
  }
}

function isIdList(value: unknown): boolean {
  if (!Array.isArray(value)) return false
  for (const id of value as unknown[]) if (typeof id !== 'number' || !Number.isInteger(id) || id < 0) return false
  return true
}
