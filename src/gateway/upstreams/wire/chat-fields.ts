import type { JsonShape } from '../../../lib/json/json-shape.ts'

/**
 * The fields of a Chat Completions request that a harness may set. A request comes from a sandbox, so an agent may choose
 * the value of each field here; all other fields are dropped before the engine reads the request. `docs/dialects.md` is
 * generated from these tables.
 */
export interface ChatFields {
  kind: 'object'
  members: Readonly<Record<string, JsonShape>>
}

const any: JsonShape = { kind: 'any' }
const scalar: JsonShape = { kind: 'scalar' }
const object = (members: Readonly<Record<string, JsonShape>>): ChatFields => ({ kind: 'object', members })
const list = (items: JsonShape): JsonShape => ({ kind: 'list', items })
const either = (...of: JsonShape[]): JsonShape => ({ kind: 'either', of })
const oneOf = (...values: unknown[]): JsonShape => ({ kind: 'scalar', accepts: (value) => values.includes(value) })
const boolean: JsonShape = { kind: 'scalar', accepts: (value) => typeof value === 'boolean' }

/** Replaces content that no engine accepts. */
export function unsupportedText(wire: unknown): string {
  const type = (wire as { type?: unknown } | null)?.type
  return `[unsupported content: ${typeof type === 'string' ? type.slice(0, 60) : 'unknown'}]`
}

const CONTENT_PART: JsonShape = {
  kind: 'tagged',
  variants: {
    text: object({ type: scalar, text: scalar }),
    refusal: object({ type: scalar, refusal: scalar }),
    // Media is inline data: admit-request.ts rejects a request with other URLs.
    image_url: object({ type: scalar, image_url: object({ url: scalar, detail: scalar }) }),
    audio_url: object({ type: scalar, audio_url: object({ url: scalar }) }),
    video_url: object({ type: scalar, video_url: object({ url: scalar }) }),
    input_audio: object({ type: scalar, input_audio: object({ data: scalar, format: scalar }) }),
  },
  instead: (part) => JSON.stringify({ type: 'text', text: unsupportedText(part) }),
}

const MESSAGE = object({
  role: scalar,
  name: scalar,
  content: either(scalar, list(CONTENT_PART)),
  reasoning_content: scalar,
  reasoning: scalar,
  refusal: scalar,
  tool_calls: list(object({ id: scalar, type: scalar, function: object({ name: scalar, arguments: scalar }) })),
  tool_call_id: scalar,
})

const TOOL: JsonShape = {
  kind: 'tagged',
  variants: {
    function: object({
      type: scalar,
      function: object({ name: scalar, description: scalar, parameters: any, strict: boolean }),
    }),
  },
}

const TOOL_CHOICE = either(oneOf('auto', 'none', 'required'), {
  kind: 'tagged',
  variants: { function: object({ type: scalar, function: object({ name: scalar }) }) },
})

const RESPONSE_FORMAT: JsonShape = {
  kind: 'tagged',
  variants: {
    text: object({ type: scalar }),
    json_object: object({ type: scalar, schema: any }),
    json_schema: object({
      type: scalar,
      json_schema: object({ name: scalar, description: scalar, schema: any, strict: boolean }),
    }),
  },
}

/** Fields that every engine accepts. */
const COMMON = {
  model: scalar,
  messages: list(MESSAGE),
  tools: list(TOOL),
  tool_choice: TOOL_CHOICE,
  parallel_tool_calls: scalar,
  response_format: RESPONSE_FORMAT,
  reasoning_effort: scalar,
  stream: scalar,
  stream_options: object({ include_usage: scalar }),
  temperature: scalar,
  top_p: scalar,
  n: scalar,
  seed: scalar,
  stop: either(scalar, list(scalar)),
  max_tokens: scalar,
  max_completion_tokens: scalar,
  presence_penalty: scalar,
  frequency_penalty: scalar,
  logprobs: scalar,
  top_logprobs: scalar,
} as const satisfies Record<string, JsonShape>

const FILTERS = { top_k: scalar, min_p: scalar } as const

/**
 * Documented switches of the models' chat templates. All other variables are dropped: on some engines they can replace the
 * template itself or arguments of the function that renders it.
 */
const TEMPLATE_SWITCHES = {
  chat_template_kwargs: object({
    enable_thinking: boolean,
    thinking: boolean,
    preserve_thinking: boolean,
    clear_thinking: boolean,
    reasoning_effort: scalar,
  }),
} as const

export const vllmFields = object({ ...COMMON, ...FILTERS, ...TEMPLATE_SWITCHES, repetition_penalty: scalar })

export const sglangFields = object({ ...COMMON, ...FILTERS, ...TEMPLATE_SWITCHES, repetition_penalty: scalar })

export const llamacppFields = object({ ...COMMON, ...FILTERS, ...TEMPLATE_SWITCHES })

/** Any other server. Includes the fields of hosted APIs for reasoning effort and verbosity. */
export const openaiFields = object({
  ...COMMON,
  ...FILTERS,
  ...TEMPLATE_SWITCHES,
  repetition_penalty: scalar,
  verbosity: scalar,
  enable_thinking: boolean,
  thinking: object({ type: scalar, budget_tokens: scalar }),
  reasoning: object({ effort: scalar, enabled: scalar, max_tokens: scalar, exclude: scalar }),
})

/**
 * Fields that choose tokens, replace the prompt or load other weights. A harness that sets such a field relies on it, so
 * the request is rejected instead of answered without the field.
 */
export const REJECTED_FIELDS: ReadonlySet<string> = new Set([
  // Choose the tokens that may or must be sampled.
  'logit_bias',
  'bad_words',
  'allowed_token_ids',
  'stop_token_ids',
  'ignore_eos',
  'min_tokens',
  'thinking_token_budget',
  'logits_processors',
  'custom_logit_processor',
  'custom_params',
  'samplers',
  'vllm_xargs',
  // Grammars besides `response_format`.
  'structured_outputs',
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'guided_decoding_backend',
  'guided_whitespace_pattern',
  'structural_tag',
  'regex',
  'ebnf',
  'grammar',
  'grammar_lazy',
  'grammar_triggers',
  'json_schema',
  // Replace or change the prompt.
  'prompt',
  'prompt_token_ids',
  'prompt_embeds',
  'input_ids',
  'kv_transfer_params',
  'chat_template',
  'documents',
  'continue_final_message',
  'echo',
  'mm_processor_kwargs',
  'media_io_kwargs',
  // Load other weights, or use the engine's internal state.
  'lora',
  'lora_path',
  'session_params',
  'bootstrap_host',
  'bootstrap_port',
  'bootstrap_room',
  'return_hidden_states',
  'slot_id',
  'id_slot',
])

/** Whether a value has no effect. Some clients send every field with such a value. */
export function isNeutral(value: unknown): boolean {
  if (value === null || value === false || value === 0 || value === '') return true
  return typeof value === 'object' && Object.keys(value).length === 0
}
