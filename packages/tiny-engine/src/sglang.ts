import { isAtLeast } from './versions.ts'
import type { EngineContext, TrainablePolicy } from './context.ts'
import { weightInfo } from './control-endpoints.ts'
import { EngineError } from './errors.ts'
import type { OutputWeights } from './inference/output-weights.ts'
import type { Policy, SampledToken, SamplingParams } from './policies/policy.ts'
import { choicesOf, isObject, type JsonObject, type Route, type Shape, type Wire } from './wire.ts'

/** Paths of vLLM with the same meaning. */
const SHARED: ReadonlySet<string> = new Set([
  '/v1/chat/completions',
  '/tokenize',
  '/detokenize',
  '/v1/models',
  '/v1/models/',
  '/health',
  '/ping',
  '/update_weight_version',
])

/** SGLang from 0.5.13 on. Output ids have a field of their own from 0.5.17, streams an extension for ids after 0.5.18. */
export function createSglangWire(version: string): Wire {
  const names = {
    tokenIds: isAtLeast(version, '0.5.17'),
    extension: isAtLeast(version, '0.5.19'),
  }
  const info: Route = {
    method: 'GET',
    handle: async ({ modelName, maxModelLen }, exchange) =>
      exchange.sendJson(
        JSON.stringify({
          served_model_name: modelName,
          context_length: maxModelLen,
          sampling_defaults: 'openai',
          version,
        }),
      ),
  }
  return {
    serves: (path) => SHARED.has(path),
    routes: new Map([
      ['/weight_version', { method: 'GET', handle: weightInfo }],
      ['/server_info', info],
      ['/get_server_info', info],
    ]),
    reasoningFields: ['reasoning_content'],
    losesHeldIds: false,
    masksByGrammar: true,
    lowersMaxTokens: false,
    toChatBody: (body) => toChatBody(body, names),
    shape: (asked, context) => createShape(asked, names, context),
    toModelCard: ({ id, object, created, root, max_model_len }) => ({
      id,
      object,
      created,
      owned_by: 'sglang',
      root,
      parent: null,
      max_model_len,
    }),
    toErrorBody,
    wrapPolicy: withTemperedLogprobs,
  }
}

interface KnownNames {
  tokenIds: boolean
  extension: boolean
}

function toChatBody(body: unknown, known: KnownNames): unknown {
  if (!isObject(body)) return body
  const { input_ids, tools, ...rest } = body
  if (body['stream'] === true) {
    const whole = ['return_prompt_token_ids', 'return_meta_info', ...(known.tokenIds ? ['return_token_ids'] : [])]
    const refused = whole.find((name) => body[name] === true)
    if (refused !== undefined) {
      throw new EngineError(
        400,
        `${refused} is not supported with streaming. Please set stream=false when using ${refused}=true.`,
      )
    }
  }
  if (Array.isArray(body['messages']) && body['messages'].length === 0) {
    throw new EngineError(400, 'Messages cannot be empty.')
  }
  return {
    ...rest,
    ...(Array.isArray(tools) && tools.length === 0 ? {} : { tools }),
    ...(body['logprobs'] === true ? { top_logprobs: body['top_logprobs'] ?? 0 } : {}),
    // Log probabilities are always computed; log probabilities that were not requested are removed below.
    return_token_ids: true,
    ...(Array.isArray(input_ids) ? { kv_transfer_params: { prompt_token_ids: input_ids } } : {}),
  }
}

// --- answers ---------------------------------------------------------------------------------------------------------

function createShape(asked: JsonObject, known: KnownNames, { texts, control }: EngineContext): Shape {
  const { eosId } = texts.tokenizer
  const wantsIds = known.tokenIds && asked['return_token_ids'] === true
  const wantsPrompt = wantsIds || asked['return_prompt_token_ids'] === true
  const sampled = new Map<number, unknown[]>()
  let head: JsonObject = {}
  let promptIds: unknown
  return {
    answer({ id, object, created, model, choices: _choices, usage, prompt_token_ids, ...rest }) {
      const weightVersion = control.weightVersion
      return {
        id,
        object,
        created,
        model,
        choices: choicesOf({ choices: _choices, ...rest }).map((choice) => {
          const { index, message, logprobs, finish_reason, token_ids } = choice
          const matched = matchedStop(choice, eosId)
          return {
            index,
            message: isObject(message) ? { ...message, content: message['content'] ?? '' } : message,
            logprobs,
            finish_reason,
            matched_stop: matched,
            ...(wantsPrompt && prompt_token_ids != null ? { prompt_token_ids } : {}),
            ...(wantsIds && token_ids != null ? { response_token_ids: token_ids } : {}),
            ...(asked['return_meta_info'] === true
              ? {
                  meta_info: {
                    id,
                    finish_reason: { type: finish_reason, matched },
                    weight_version: weightVersion,
                    output_token_logprobs: listLogprobs(token_ids, logprobs),
                  },
                }
              : {}),
          }
        }),
        usage,
        metadata: { weight_version: weightVersion },
      }
    },
    chunk({ id, object, created, model, usage, prompt_token_ids, ...rest }) {
      head = { id, object, created, model }
      if (Array.isArray(prompt_token_ids)) promptIds = prompt_token_ids
      const choices = choicesOf(rest)
      for (const { index, token_ids } of choices) {
        if (!Array.isArray(token_ids)) continue
        sampled.set(Number(index), [...(sampled.get(Number(index)) ?? []), ...(token_ids as unknown[])])
      }
      const shown = choices.filter(isVisible).map((choice) => ({
        index: choice['index'],
        delta: choice['delta'],
        logprobs: choice['logprobs'] ?? null,
        finish_reason: choice['finish_reason'],
        matched_stop: choice['finish_reason'] === null ? null : matchedStop(choice, eosId),
      }))
      if (choices.length > 0 && shown.length === 0) return undefined
      return { ...head, choices: shown, ...(usage === undefined ? {} : { usage }) }
    },
    late() {
      if (!known.extension) return undefined
      const sglext = {
        ...(asked['return_input_ids_in_sglext'] === true && promptIds !== undefined ? { input_ids: promptIds } : {}),
        ...(asked['return_output_ids_in_sglext'] === true && sampled.size > 0
          ? { output_ids: [...sampled].toSorted(([a], [b]) => a - b).map(([, ids]) => ids) }
          : {}),
      }
      return Object.keys(sglext).length === 0 ? undefined : { ...head, choices: [], sglext }
    },
  }
}

/** If a parser holds text back, a chunk contains only log probabilities, if requested; otherwise there is no chunk. */
function isVisible({ delta, logprobs, finish_reason }: JsonObject): boolean {
  return finish_reason !== null || logprobs != null || (isObject(delta) && Object.keys(delta).length > 0)
}

/** Unlike vLLM, SGLang also reports the ordinary end of turn. */
function matchedStop({ finish_reason, stop_reason }: JsonObject, eosId: number): unknown {
  return stop_reason ?? (finish_reason === 'stop' ? eosId : null)
}

/** `[log probability, id, text]`. If the lists differ in length, they are aligned at their ends. */
function listLogprobs(ids: unknown, logprobs: unknown): unknown[] | undefined {
  const content = isObject(logprobs) ? logprobs['content'] : undefined
  if (!Array.isArray(ids) || !Array.isArray(content)) return undefined
  const count = Math.min(ids.length, content.length)
  const entries = (content as JsonObject[]).slice(content.length - count)
  return (ids as unknown[]).slice(ids.length - count).map((id, i) => [entries[i]?.['logprob'], id, null])
}

// --- errors ----------------------------------------------------------------------------------------------------------

/** Flat errors, and another message for prompts that are too long. */
function toErrorBody({ message, type, param, status, overflow }: EngineError): string {
  const text = overflow === undefined ? message : describeOverflow(overflow)
  return JSON.stringify({ object: 'error', message: text, type, param, code: status })
}

function describeOverflow({ prompt, output, context }: NonNullable<EngineError['overflow']>): string {
  if (output > context) {
    return `max_completion_tokens is too large: ${output}.This model supports at most ${context} completion tokens.`
  }
  if (prompt >= context) {
    return `The input (${prompt} tokens) is longer than the model's context length (${context} tokens).`
  }
  return `Requested token count exceeds the model's maximum context length of ${context} tokens. You requested a total of ${prompt + output} tokens: ${prompt} tokens from the input messages and ${output} tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.`
}

// --- log probabilities -----------------------------------------------------------------------------------------------

/** Reports the model's distribution after temperature and before any filter. */
export function withTemperedLogprobs(policy: Policy | TrainablePolicy): Policy {
  return {
    name: policy.name,
    async start(request) {
      const { temperature, topLogprobs } = request.sampling
      if (temperature === 0 || temperature === 1) return policy.start(request)
      const sampling: SamplingParams = { ...request.sampling, topLogprobs: -1 }
      const generation = await policy.start({ ...request, sampling })
      return {
        ...(generation.fault === undefined ? {} : { fault: generation.fault }),
        get cachedTokens() {
          return generation.cachedTokens
        },
        async *sample(choice) {
          for await (const token of generation.sample(choice)) yield temper(token, temperature, topLogprobs)
        },
      }
    },
    ...('setOutputWeights' in policy
      ? {
          hiddenSize: policy.hiddenSize,
          setOutputWeights: (weights: OutputWeights) => policy.setOutputWeights(weights),
        }
      : {}),
    [Symbol.asyncDispose]: () => policy[Symbol.asyncDispose](),
  }
}

/** `token.top` contains the whole vocabulary. */
function temper(token: SampledToken, temperature: number, count: number): SampledToken {
  const total = token.top.reduce((sum, { logprob }) => sum + Math.exp(logprob / temperature), 0)
  const tempered = (logprob: number): number => Math.fround(logprob / temperature - Math.log(total))
  const top = count === -1 ? token.top : token.top.slice(0, count)
  return {
    ...token,
    logprob: tempered(token.logprob),
    top: top.map(({ id, logprob }) => ({ id, logprob: tempered(logprob) })),
  }
}
