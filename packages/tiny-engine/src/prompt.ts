import { type ChatTemplate, ChatTemplateError } from './chat-template.ts'
import { badRequest, EngineError } from './errors.ts'
import { parsePythonJson } from './python-json.ts'
import type { Tokenizer } from './tokenizer.ts'
import type { ChatBody, TokenizeChatBody } from './wire-schema.ts'

/** Cache size in characters of text; about 40 MB with the ids. */
const MAX_REMEMBERED = 8_000_000

/**
 * Encodes prompts and caches their pieces. Tokenization splits a text at special tokens first, so the text between two of
 * them always has the same ids: for a longer conversation, only the new messages must be encoded.
 */
export class PromptEncoder {
  readonly #tokenizer: Tokenizer
  readonly #specialIds = new Map<string, number>()
  readonly #specials: RegExp
  readonly #known = new Map<string, Int32Array>()
  #remembered = 0
  /** Maximum number of characters of a token. */
  readonly maxCharsPerToken: number

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer
    let longest = 1
    for (let id = 0; id < tokenizer.vocabularySize; id++) {
      const text = tokenizer.tokenText(id)
      longest = Math.max(longest, text.length)
      if (tokenizer.isSpecial(id)) this.#specialIds.set(text, id)
    }
    this.maxCharsPerToken = longest
    const names = [...this.#specialIds.keys()].toSorted((a, b) => b.length - a.length)
    this.#specials = new RegExp(`(${names.map(escape).join('|')})`)
  }

  encode(text: string): Int32Array {
    const pieces = text.split(this.#specials).flatMap((piece) => {
      const special = this.#specialIds.get(piece)
      if (special !== undefined) return [Int32Array.of(special)]
      return piece === '' ? [] : [this.#encodePiece(piece)]
    })
    const ids = new Int32Array(pieces.reduce((length, piece) => length + piece.length, 0))
    let at = 0
    for (const piece of pieces) {
      ids.set(piece, at)
      at += piece.length
    }
    return ids
  }

  #encodePiece(text: string): Int32Array {
    let ids = this.#known.get(text)
    if (ids === undefined) {
      ids = this.#tokenizer.encode(text, { parseSpecial: false })
      this.#remembered += text.length
    } else {
      this.#known.delete(text)
    }
    // The newest entries are last; the oldest are evicted first.
    this.#known.set(text, ids)
    for (const oldest of this.#known.keys()) {
      if (this.#remembered <= MAX_REMEMBERED) break
      this.#known.delete(oldest)
      this.#remembered -= oldest.length
    }
    return ids
  }
}

function escape(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)
}

/** Renders the conversation. `raw` is the text of the body, from which numbers in tools are parsed. */
export function toPromptText(body: ChatBody | TokenizeChatBody, raw: string, template: ChatTemplate): string {
  const { continue_final_message: continueFinalMessage = false } = body
  try {
    return template.toText({
      messages: body.messages.map(toKnownRole),
      ...(body.tools == null ? {} : { tools: toTemplateTools(body.tools, raw) }),
      addGenerationPrompt: body.add_generation_prompt ?? true,
      continueFinalMessage,
      variables: toVariables(body),
    })
  } catch (error) {
    if (error instanceof ChatTemplateError) {
      throw new EngineError(400, error.message, { param: error.param, cause: error })
    }
    // The conversation is nested too deeply for the recursion of the template engine.
    if (error instanceof RangeError) throw badRequest('The conversation is too deeply nested for the chat template.')
    throw error
  }
}

/** The model's template has no `developer` role and would omit such a message. */
function toKnownRole(message: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  return message['role'] === 'developer' ? { ...message, role: 'system' } : message
}

function toVariables(body: ChatBody | TokenizeChatBody): Readonly<Record<string, unknown>> {
  const given = body.chat_template_kwargs ?? {}
  const effort = 'reasoning_effort' in body ? body.reasoning_effort : undefined
  if (effort == null) return given
  return { enable_thinking: effort !== 'none', reasoning_effort: effort, ...given }
}

/** Tools as vLLM passes them to the template: known fields in its order, null for absent ones. */
function toTemplateTools(tools: NonNullable<ChatBody['tools']>, raw: string): unknown[] {
  const exact = tools.some(hasNumbers) ? readTools(raw) : undefined
  return tools.map((tool, i) => {
    const parameters = exact?.[i] ?? tool.function.parameters ?? null
    const { name, description, strict } = tool.function
    return {
      type: 'function',
      function: { name, description: description ?? null, parameters, ...(strict == null ? {} : { strict }) },
    }
  })
}

/** Returns the parameters of each tool with the numbers as sent: JavaScript does not keep 3.0. */
function readTools(raw: string): unknown[] | undefined {
  const body = parsePythonJson(raw)
  const tools = body instanceof Map ? body.get('tools') : undefined
  if (!Array.isArray(tools)) return undefined
  return tools.map((tool) => {
    const called = tool instanceof Map ? tool.get('function') : undefined
    return called instanceof Map ? (called.get('parameters') ?? undefined) : undefined
  })
}

function hasNumbers(value: unknown): boolean {
  if (typeof value === 'number') return true
  if (typeof value !== 'object' || value === null) return false
  // JavaScript objects reorder keys like "10".
  return Object.entries(value).some(
    ([key, member]) => (!Array.isArray(value) && /^\d+$/.test(key)) || hasNumbers(member),
  )
}

/** Returns the maximum number of tokens after a rendered prompt; rejects prompts that are too long, as vLLM does. */
export function fitRenderedPrompt(
  text: string | undefined,
  encode: () => Int32Array,
  limits: { maxModelLen: number; maxCharsPerToken: number; maxTokens: number | undefined; maxTokensParam: string },
): { promptIds: Int32Array; maxTokens: number } {
  const { maxModelLen, maxCharsPerToken, maxTokens, maxTokensParam } = limits
  checkMaxTokens(maxTokens, maxTokensParam, maxModelLen)
  const output = maxTokens ?? 0
  const maxInput = maxModelLen - output
  const start = `This model's maximum context length is ${maxModelLen} tokens. However, you requested ${output} output tokens and your prompt contains`
  const advice = 'Please reduce the length of the input prompt or the number of requested output tokens.'
  if (text !== undefined && text.length > maxInput * maxCharsPerToken) {
    const bound = maxInput * maxCharsPerToken
    throw badRequest(
      `${start} ${text.length} characters (more than ${bound} characters, which is the upper bound for ${maxInput} input tokens). ${advice}`,
      'input_text',
      text.length,
      {
        // vLLM rejects by characters because counting tokens is slow; only some wires need the count.
        get prompt() {
          return encode().length
        },
        output,
        context: maxModelLen,
      },
    )
  }
  const promptIds = encode()
  if (promptIds.length > maxInput) {
    // vLLM stops tokenising one token past the limit, so it does not know the real length.
    const count = text === undefined ? promptIds.length : maxInput + 1
    const qualifier = count === maxInput + 1 ? 'at least ' : ''
    throw badRequest(
      `${start} ${qualifier}${count} input tokens, for a total of ${qualifier}${count + output} tokens. ${advice}`,
      'input_tokens',
      count,
      { prompt: promptIds.length, output, context: maxModelLen },
    )
  }
  return { promptIds, maxTokens: Math.min(maxTokens ?? Infinity, maxModelLen - promptIds.length) }
}

/** Prompts as ids on the chat route are not checked against `max_tokens`, which is reduced to fit. */
export function fitGivenPrompt(
  promptIds: Int32Array,
  limits: { maxModelLen: number; maxTokens: number | undefined; maxTokensParam: string },
): { promptIds: Int32Array; maxTokens: number } {
  checkMaxTokens(limits.maxTokens, limits.maxTokensParam, limits.maxModelLen)
  if (promptIds.length > limits.maxModelLen) {
    throw badRequest(
      `Input length (${promptIds.length}) exceeds model's maximum context length (${limits.maxModelLen}).`,
      undefined,
      undefined,
      { prompt: promptIds.length, output: limits.maxTokens ?? 0, context: limits.maxModelLen },
    )
  }
  return { promptIds, maxTokens: Math.min(limits.maxTokens ?? Infinity, limits.maxModelLen - promptIds.length) }
}

/** The engine's own check, the last for every prompt. */
export function checkPromptLength(promptIds: Int32Array, maxModelLen: number): void {
  if (promptIds.length === 0) throw badRequest('The decoder prompt cannot be empty')
  const overflow = { prompt: promptIds.length, output: 0, context: maxModelLen }
  if (promptIds.length > maxModelLen) {
    throw badRequest(
      `The decoder prompt (length ${promptIds.length}) is longer than the maximum model length of ${maxModelLen}. Make sure that \`max_model_len\` is no smaller than the number of text tokens.`,
      undefined,
      undefined,
      overflow,
    )
  }
  if (promptIds.length === maxModelLen) {
    throw badRequest(
      `The decoder prompt (length ${promptIds.length}) plus the number of requested output tokens (at least 1) is longer than the maximum model length of ${maxModelLen}. Make sure that \`max_model_len\` is no smaller than the number of text tokens (prompt + requested output tokens).`,
      undefined,
      undefined,
      overflow,
    )
  }
}

export function toPromptIds(ids: readonly number[], vocabularySize: number): Int32Array {
  for (const id of ids) if (id >= vocabularySize) throw badRequest(`Token id ${id} is out of vocabulary`)
  return Int32Array.from(ids)
}

function checkMaxTokens(maxTokens: number | undefined, param: string, maxModelLen: number): void {
  if (maxTokens !== undefined && maxTokens > maxModelLen) {
    throw badRequest(
      `${param}=${maxTokens} cannot be greater than max_model_len=max_total_tokens=${maxModelLen}. Please request fewer output tokens.`,
      param,
      maxTokens,
      { prompt: 0, output: maxTokens, context: maxModelLen },
    )
  }
}
