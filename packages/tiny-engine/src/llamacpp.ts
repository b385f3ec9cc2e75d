import type { EngineContext } from './context.ts'
import { EngineError } from './errors.ts'
import type { Exchange } from './exchange.ts'
import { completions } from './generation-endpoints.ts'
import { toPromptIds, toPromptText } from './prompt.ts'
import { choicesOf, isObject, type JsonObject, type Route, type Shape, type Wire } from './wire.ts'
import { DetokenizeBody, parseBody, TokenizeChatBody } from './wire-schema.ts'

/** Paths of vLLM with the same meaning. */
const SHARED: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/models', '/v1/models/'])

/** llama.cpp's server with `--jinja`. */
export function createLlamacppWire(version: string): Wire {
  return {
    serves: (path) => SHARED.has(path),
    routes: new Map<string, Route>([
      [
        '/health',
        { method: 'GET', isOpen: true, handle: async (_context, exchange) => sendObject(exchange, { status: 'ok' }) },
      ],
      ['/props', { method: 'GET', handle: (context, exchange) => showProps(context, exchange, version) }],
      ['/completion', { method: 'POST', handle: complete }],
      ['/apply-template', { method: 'POST', handle: applyTemplate }],
      ['/tokenize', { method: 'POST', handle: tokenize }],
      ['/detokenize', { method: 'POST', handle: detokenize }],
    ]),
    reasoningFields: ['reasoning_content'],
    losesHeldIds: false,
    masksByGrammar: false,
    lowersMaxTokens: true,
    toChatBody,
    shape: createShape,
    toModelCard: ({ id, object, created, max_model_len }) => ({
      id,
      aliases: [],
      tags: [],
      object,
      created,
      owned_by: 'llamacpp',
      meta: { n_ctx: max_model_len, n_ctx_train: max_model_len },
    }),
    toErrorBody,
  }
}

// --- paths of its own ------------------------------------------------------------------------------------------------

function sendObject(exchange: Exchange, body: JsonObject): void {
  exchange.sendJson(JSON.stringify(body))
}

async function showProps(
  { modelName, maxModelLen }: EngineContext,
  exchange: Exchange,
  version: string,
): Promise<void> {
  sendObject(exchange, {
    default_generation_settings: {
      params: { temperature: 1, top_k: 0, top_p: 1, min_p: 0 },
      n_ctx: maxModelLen,
    },
    total_slots: 4,
    model_alias: modelName,
    build_info: version,
  })
}

async function applyTemplate(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = parseBody(TokenizeChatBody, toChatBody(await exchange.readJson()))
  sendObject(exchange, { prompt: toPromptText(body, exchange.rawBody, context.template) })
}

async function tokenize(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = await exchange.readJson()
  const content = isObject(body) ? body['content'] : undefined
  const isParsed = !isObject(body) || body['parse_special'] !== false
  const text = typeof content === 'string' ? content : ''
  const { tokenizer } = context.texts
  const ids = isParsed ? context.encoder.encode(text) : tokenizer.encode(text, { parseSpecial: false })
  sendObject(exchange, { tokens: Array.from(ids) })
}

/** The native completion, whole answers only. */
function complete(context: EngineContext, exchange: Exchange): Promise<void> {
  let returnsTokens = false
  return completions(context, exchange, {
    toBody(asked) {
      if (!isObject(asked)) return asked
      const { n_predict, n_probs, return_tokens, ...rest } = asked
      returnsTokens = return_tokens === true
      // Without a limit, the answer may fill the context.
      const prompt = Array.isArray(rest['prompt']) ? rest['prompt'].length : 0
      const limit = typeof n_predict === 'number' && n_predict >= 0 ? n_predict : context.maxModelLen - prompt
      const count = typeof n_probs === 'number' && n_probs > 0 ? { logprobs: n_probs } : {}
      return { ...rest, ...count, max_tokens: limit, return_token_ids: true, skip_special_tokens: false }
    },
    toAnswer({ model, usage, ...rest }) {
      const [choice = {}] = choicesOf(rest)
      const counts = isObject(usage) ? usage : {}
      return {
        ...toNative(choice, undefined, returnsTokens),
        content: choice['text'],
        model,
        tokens_predicted: counts['completion_tokens'],
        tokens_evaluated: counts['prompt_tokens'],
        ...toProbabilities(choice, context),
      }
    },
  })
}

/** As in chat, a token that ends within a character has no entry, and a stop string removes entries at the end. */
function toProbabilities(choice: JsonObject, context: EngineContext): JsonObject {
  const { logprobs } = choice
  if (!isObject(logprobs)) return {}
  const [tokens, values] = [logprobs['tokens'], logprobs['token_logprobs']] as [string[], number[]]
  const content = tokens.map((token, i) => ({ token, logprob: values[i], top_logprobs: [] }))
  const listed = toLogprobs({ ...choice, logprobs: { content } }, context, false).logprobs
  return { completion_probabilities: listed?.['content'] ?? [] }
}

async function detokenize(context: EngineContext, exchange: Exchange): Promise<void> {
  const { tokens } = parseBody(DetokenizeBody, await exchange.readJson())
  const { tokenizer } = context.texts
  sendObject(exchange, { content: tokenizer.decode(toPromptIds(tokens, tokenizer.vocabularySize)) })
}

// --- chat ------------------------------------------------------------------------------------------------------------

function toChatBody(body: unknown): unknown {
  if (!isObject(body)) return body
  const {
    tools,
    logprobs,
    top_logprobs,
    n_predict,
    return_token_ids: _ids,
    kv_transfer_params: _prompt,
    ...rest
  } = body
  const hasTools = Array.isArray(tools) && tools.length > 0
  if (logprobs === true && hasTools && body['stream'] === true) {
    throw new EngineError(400, 'logprobs is not supported with tools + stream')
  }
  if (logprobs !== true && top_logprobs != null) {
    throw new EngineError(400, 'top_logprobs requires logprobs to be set to true')
  }
  const count = typeof top_logprobs === 'number' ? top_logprobs : 20
  return {
    ...rest,
    ...(hasTools ? { tools } : {}),
    ...(n_predict === undefined ? {} : { max_tokens: n_predict }),
    // Zero switches them off.
    ...(logprobs === true && count > 0 ? { logprobs, top_logprobs: count } : {}),
    // Log probabilities are always computed; log probabilities that were not requested are removed below.
    return_token_ids: true,
    return_prompt_text: true,
  }
}

function createShape(asked: JsonObject, context: EngineContext): Shape {
  const isVerbose = asked['verbose'] === true
  const returnsTokens = asked['return_tokens'] === true
  return {
    answer({ id, object, created, model, usage, prompt_text, ...rest }) {
      const choices = choicesOf(rest)
      if (choices.some((choice) => !isText(choice['token_ids'], context))) {
        throw new EngineError(500, 'The model produced output that does not match the expected peg-native format')
      }
      const [first] = choices
      return {
        choices: choices.map((choice) => ({
          finish_reason: choice['finish_reason'] === 'abort' ? 'length' : choice['finish_reason'],
          index: choice['index'],
          message: choice['message'],
          ...toLogprobs(choice, context, false),
        })),
        created,
        model,
        system_fingerprint: 'b0-tiny',
        object,
        ...(usage === undefined ? {} : { usage }),
        id,
        // With several choices, only the first has its native answer.
        ...(isVerbose && first !== undefined ? { __verbose: toNative(first, prompt_text, returnsTokens) } : {}),
      }
    },
    chunk({ id, object, created, model, usage, ...rest }) {
      const choices = choicesOf(rest)
      const shown = choices.flatMap((choice) => {
        const { index, delta, finish_reason } = choice
        const logprobs = toLogprobs(choice, context, true)
        const isSilent = isObject(delta) && Object.keys(delta).length === 0 && finish_reason === null
        return isSilent && logprobs.logprobs === undefined ? [] : [{ finish_reason, index, delta, ...logprobs }]
      })
      if (choices.length > 0 && shown.length === 0) return undefined
      return { choices: shown, created, id, model, object, ...(usage === undefined ? {} : { usage }) }
    },
  }
}

/** Whether the server's parser accepts the text: it rejects invalid bytes, but not an unfinished character. */
function isText(ids: unknown, { texts }: EngineContext): boolean {
  if (!Array.isArray(ids)) return true
  const bytes = Buffer.concat((ids as number[]).map((id) => texts.tokenizer.bytesOf(id)))
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: true })
    return true
  } catch {
    return false
  }
}

/**
 * Returns entries with their ids. A token that ends within a character has no text. A complete answer loses as many entries
 * as the stop string has tokens.
 */
function toLogprobs(choice: JsonObject, { texts }: EngineContext, isChunk: boolean): { logprobs?: JsonObject } {
  const { logprobs, token_ids: ids, stop_reason: stop } = choice
  const content = isObject(logprobs) ? logprobs['content'] : undefined
  if (!Array.isArray(content) || content.length === 0) return {}
  // If the lists differ in length, they are aligned at their ends.
  const offset = Array.isArray(ids) ? ids.length - content.length : 0
  const listed = (content as JsonObject[]).flatMap((entry, i) => {
    const id: unknown = Array.isArray(ids) ? ids[i + offset] : -1
    return entry['token'] === '' ? [] : [{ id, ...entry }]
  })
  const cut = !isChunk && typeof stop === 'string' ? texts.tokenizer.encode(stop).length : 0
  const kept = listed.slice(0, Math.max(0, listed.length - cut))
  return kept.length === 0 ? {} : { logprobs: { content: kept } }
}

function toNative(choice: JsonObject, prompt: unknown, returnsTokens: boolean): JsonObject {
  const { token_ids: ids, stop_reason: stop, finish_reason: reason } = choice
  return {
    index: choice['index'],
    tokens: returnsTokens && Array.isArray(ids) ? ids : [],
    prompt,
    truncated: false,
    stop_type: typeof stop === 'string' ? 'word' : reason === 'length' ? 'limit' : 'eos',
    stopping_word: typeof stop === 'string' ? stop : '',
  }
}

// --- errors ----------------------------------------------------------------------------------------------------------

function toErrorBody({ message, status, overflow }: EngineError): string {
  if (overflow === undefined) {
    return JSON.stringify({ error: { code: status, message, type: ERROR_TYPES[status] ?? 'server_error' } })
  }
  const { prompt, context } = overflow
  return JSON.stringify({
    error: {
      code: 400,
      message: `request (${prompt} tokens) exceeds the available context size (${context} tokens), try increasing it`,
      type: 'exceed_context_size_error',
      n_prompt_tokens: prompt,
      n_ctx: context,
    },
  })
}

const ERROR_TYPES: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  501: 'not_supported_error',
  503: 'unavailable_error',
}
