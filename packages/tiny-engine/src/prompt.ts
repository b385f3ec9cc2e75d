import { type ChatTemplate, ChatTemplateError } from './chat-template.ts'
import { badRequest, EngineError } from './errors.ts'
import { parsePythonJson } from './python-json.ts'
import type { Tokenizer } from './tokenizer.ts'
import type { ChatBody, TokenizeChatBody } from './wire-schema.ts'

/** Characters of text whose ids are remembered; about 40 MB with them. */
const MAX_REMEMBERED = 8_000_000

/**
 * Encodes prompts and remembers their pieces. Special tokens cut a text before anything else does, so what lies between
 * two of them has the same ids wherever it stands: of a conversation that grew, only the new messages are work.
 */
export class PromptEncoder {
  readonly #tokenizer: Tokenizer
  readonly #specialIds = new Map<string, number>()
  readonly #specials: RegExp
  readonly #known = new Map<string, Int32Array>()
  #remembered = 0
  /** No token stands for more characters than this. */
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
    // The youngest stand last, the oldest go first.
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

/** The conversation in the template's form. `raw` is the body's own text, from which numbers in tools are read. */
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
    // Conversations nested too deep for the template engine's own recursion.
    if (error instanceof RangeError) throw badRequest('The conversation is too deeply nested for the chat template.')
    throw error
  }
}

/** The model's template has no `developer`, and would leave such a message out. */
function toKnownRole(message: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  return message['role'] === 'developer' ? { ...message, role: 'system' } : message
}

function toVariables(body: ChatBody | TokenizeChatBody): Readonly<Record<string, unknown>> {
  const given = body.chat_template_kwargs ?? {}
  const effort = 'reasoning_effort' in body ? body.reasoning_effort : undefined
  if (effort == null) return given
  return { enable_thinking: effort !== 'none', reasoning_effort: effort, ...given }
}

/** What vLLM hands to the template: the fields it knows, in its order, null where nothing was said. */
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

/** Parameters of each tool with the numbers as they were sent: JavaScript has lost the point of 3.0 by now. */
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
  // Keys like "10" change their place in a JavaScript object.
  return Object.entries(value).some(
    ([key, member]) => (!Array.isArray(value) && /^\d+$/.test(key)) || hasNumbers(member),
  )
}

/** How many tokens may be sampled after a prompt that was rendered here; refuses what does not fit, as vLLM does. */
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
        // The reason to refuse by characters is that counting tokens takes long; only some wires want to know.
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
    // vLLM stops tokenising one past the limit, so it knows no more than that.
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

/** Prompts that come as ids to the chat route are not checked against `max_tokens`; it is cut to what fits. */
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

/** The engine's own check, which every prompt meets last. */
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
