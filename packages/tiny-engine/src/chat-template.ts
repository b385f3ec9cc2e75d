import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Template } from '@huggingface/jinja'
import * as z from 'zod'
import { parsePythonJson, PythonNumber, toPythonNumber } from './python-json.ts'
import type { Tokenizer } from './tokenizer.ts'

/** The conversation cannot be rendered by the template. Status 400. */
export class ChatTemplateError extends Error {
  override readonly name = 'ChatTemplateError'
  /** The invalid field of the request, if known. */
  readonly param: string | undefined

  constructor(message: string, options: { param?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.param = options.param
  }
}

/** Input of a prompt, with the field names of an OpenAI chat request. */
export interface ChatPrompt {
  messages: readonly Readonly<Record<string, unknown>>[]
  /** Plain values, or values of `parsePythonJson`, which keep 3.0 and long integers as they were sent. */
  tools?: readonly unknown[]
  addGenerationPrompt?: boolean
  /** Leaves the last message open, so that the answer continues it. */
  continueFinalMessage?: boolean
  /** `chat_template_kwargs`: further variables of the template. */
  variables?: Readonly<Record<string, unknown>>
}

/**
 * A model's chat template: renders a conversation to text and ids, as vLLM does with Python's jinja2.
 *
 * The template decides which roles exist. The embedded model's template knows system, user, assistant and tool and omits
 * messages of other roles, so callers must map `developer` to `system`.
 */
export interface ChatTemplate {
  /** Throws `ChatTemplateError`. */
  toText(prompt: ChatPrompt): string
  tokenise(prompt: ChatPrompt): Int32Array
}

const TokenizerConfig = z.looseObject({
  chat_template: z.string(),
  bos_token: z.string().nullish(),
  eos_token: z.string().nullish(),
  pad_token: z.string().nullish(),
  unk_token: z.string().nullish(),
})
type TokenizerConfig = z.infer<typeof TokenizerConfig>

export interface ChatTemplateOptions {
  /** Replaces an image by a placeholder instead of rejecting the conversation. */
  images?: boolean
  /** Replaces tool arguments that are no JSON object by `{}` instead of rejecting the conversation. */
  coercesArguments?: boolean
}

/** Loads the template from `tokenizer_config.json` of a model folder. */
export async function loadChatTemplate(
  folder: string,
  tokenizer: Pick<Tokenizer, 'encode'>,
  options: ChatTemplateOptions = {},
): Promise<ChatTemplate> {
  const config: unknown = JSON.parse(await readFile(join(folder, 'tokenizer_config.json'), 'utf8'))
  return createChatTemplate(TokenizerConfig.parse(config), tokenizer, options)
}

export function createChatTemplate(
  config: TokenizerConfig,
  tokenizer: Pick<Tokenizer, 'encode'>,
  { images = false, coercesArguments = false }: ChatTemplateOptions = {},
): ChatTemplate {
  const { chat_template, bos_token, eos_token, pad_token, unk_token } = config
  const template = new Template(chat_template)
  const globals = { bos_token, eos_token, pad_token, unk_token }
  const toText = (prompt: ChatPrompt) => {
    const messages = images ? prompt.messages.map(withImagesAsText) : prompt.messages
    return renderPrompt(template, globals, { ...prompt, messages }, coercesArguments)
  }
  return { toText, tokenise: (prompt) => tokenizer.encode(toText(prompt)) }
}

/** Returns equal placeholders for equal images and different ones for different images. */
function withImagesAsText(message: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const { content } = message
  if (!Array.isArray(content)) return message
  return { ...message, content: content.map((part: unknown) => imageText(part) ?? part) }
}

function imageText(part: unknown): string | undefined {
  const image = isRecord(part) && part['type'] === 'image_url' ? part['image_url'] : undefined
  const url = isRecord(image) ? image['url'] : undefined
  if (typeof url !== 'string') return undefined
  return `<image ${createHash('sha256').update(url).digest('hex').slice(0, 16)}>`
}

function renderPrompt(
  template: Template,
  globals: Readonly<Record<string, unknown>>,
  prompt: ChatPrompt,
  coercesArguments: boolean,
): string {
  const { addGenerationPrompt = true, continueFinalMessage = false } = prompt
  if (addGenerationPrompt && continueFinalMessage) {
    throw new ChatTemplateError('Cannot set both `continue_final_message` and `add_generation_prompt` to True.')
  }
  const messages = prompt.messages.map((message, i) => toTemplateMessage(message, i, coercesArguments))
  const last = messages.at(-1)
  if (last === undefined) throw new ChatTemplateError('The conversation has no messages.', { param: 'messages' })

  const marks = createMarks([messages, prompt.tools, prompt.variables])
  // The space behind the end shows whether the template trims its output.
  const opened = { ...last, content: `${last.content}${marks.end} ` }
  const text = runTemplate(template, {
    ...globals,
    ...prompt.variables,
    messages: marks.hide(continueFinalMessage ? messages.with(-1, opened) : messages),
    tools: prompt.tools === undefined ? null : marks.hide(prompt.tools),
    add_generation_prompt: addGenerationPrompt,
  })
  return marks.reveal(continueFinalMessage ? cutAfterFinalMessage(text, marks.end) : text)
}

function cutAfterFinalMessage(text: string, end: string): string {
  const at = text.lastIndexOf(end)
  if (at === -1) {
    throw new ChatTemplateError('The template omits the final message, so the message cannot be continued.', {
      param: 'continue_final_message',
    })
  }
  const cut = text.slice(0, at)
  return text[at + end.length] === ' ' ? cut : cut.trimEnd()
}

function runTemplate(template: Template, variables: Readonly<Record<string, unknown>>): string {
  try {
    return template.render(variables)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw new ChatTemplateError(`The chat template rejected the conversation: ${reason}`, { cause: error })
  }
}

interface TemplateMessage {
  role: string
  content: string
  [field: string]: unknown
}

/** Fields that vLLM passes to a template with text content. Other fields are dropped. */
function toTemplateMessage(
  message: Readonly<Record<string, unknown>>,
  index: number,
  coercesArguments: boolean,
): TemplateMessage {
  const param = `messages.${index}`
  const { role, name, tool_calls: toolCalls, tool_call_id: toolCallId } = message
  if (typeof role !== 'string') throw new ChatTemplateError('A message has no role.', { param: `${param}.role` })
  const reasoning = message['reasoning'] ?? message['reasoning_content']
  return {
    role,
    content: toContentText(message['content'], `${param}.content`),
    ...(typeof name === 'string' ? { name } : {}),
    ...(role === 'tool' && typeof toolCallId === 'string' ? { tool_call_id: toolCallId } : {}),
    ...(role === 'assistant' && typeof reasoning === 'string' ? { reasoning, reasoning_content: reasoning } : {}),
    // An empty list is dropped: templates only test whether the field exists.
    ...(role === 'assistant' && Array.isArray(toolCalls) && toolCalls.length > 0
      ? { tool_calls: toolCalls.map((call, i) => toTemplateCall(call, `${param}.tool_calls.${i}`, coercesArguments)) }
      : {}),
  }
}

const TEXT_FIELDS: Readonly<Record<string, string>> = {
  text: 'text',
  input_text: 'text',
  output_text: 'text',
  refusal: 'refusal',
  thinking: 'thinking',
}

function toContentText(content: unknown, param: string): string {
  if (content == null) return ''
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) throw new ChatTemplateError('The content must be a text or a list of parts.', { param })
  return content.map((part: unknown) => toPartText(part, param)).join('\n')
}

function toPartText(part: unknown, param: string): string {
  if (typeof part === 'string') return part
  const fields = isRecord(part) ? part : {}
  const field = typeof fields['type'] === 'string' ? TEXT_FIELDS[fields['type']] : undefined
  const text = field === undefined ? undefined : fields[field]
  if (typeof text === 'string') return text
  throw new ChatTemplateError(`This model accepts only text, not parts of type ${String(fields['type'])}.`, {
    param,
  })
}

function toTemplateCall(call: unknown, param: string, coerces: boolean): unknown {
  const { function: called, ...rest } = isRecord(call) ? call : {}
  if (!isRecord(called)) throw new ChatTemplateError('A tool call has no function.', { param })
  const args = parseArguments(called['arguments'], `${param}.function.arguments`, coerces)
  return { ...rest, function: { ...called, arguments: coerces && !isMapping(args) ? {} : args } }
}

/** Arguments are JSON in a string; templates receive the parsed value. An empty string means no arguments. */
function parseArguments(value: unknown, param: string, coerces: boolean): unknown {
  if (value == null || value === '') return {}
  if (typeof value !== 'string') return value
  try {
    return parsePythonJson(value)
  } catch (error) {
    if (coerces) return {}
    throw new ChatTemplateError('The arguments of a tool call are not JSON.', { param, cause: error })
  }
}

/**
 * The template engine prints numbers as JavaScript does and moves integer-like keys to the front. Therefore both pass
 * through it as marked strings, which are replaced by their Python notation in the rendered text. A mark begins with a
 * control character, which `tojson` escapes and plain output does not: this distinguishes the quotes that `tojson` adds
 * around a number from quotes of the template. Templates that calculate with numbers of tools or arguments do not work.
 */
function createMarks(inputs: readonly unknown[]) {
  const texts = [...stringsIn(inputs)]
  let serial = 0
  while (texts.some((text) => text.includes(`u0001m${serial}`) || text.includes(`\u0001m${serial}`))) serial++
  const mark = `\u0001m${serial}`
  const escaped = String.raw`\\u0001m${serial}`

  const hide = (value: unknown): unknown => {
    if (typeof value === 'number' || typeof value === 'bigint') return hide(toPythonNumber(value))
    if (value instanceof PythonNumber) return `${mark}n${value.text}\u0001`
    if (Array.isArray(value)) return value.map(hide)
    if (value instanceof Map || isRecord(value)) {
      const entries = value instanceof Map ? [...value] : Object.entries(value)
      return Object.fromEntries(entries.map(([key, member]) => [hideKey(String(key)), hide(member)]))
    }
    return value
  }
  const hideKey = (key: string) => (/^\d+$/.test(key) ? `${mark}k${key}` : key)

  const printedNumber = new RegExp(`"${escaped}n(.*?)\\\\u0001"|${mark}n(.*?)\u0001`, 'g')
  const printedKey = new RegExp(`${escaped}k|${mark}k`, 'g')
  const reveal = (text: string) =>
    text
      .replace(printedNumber, (_all, json: string | undefined, plain: string | undefined) => json ?? plain ?? '')
      .replace(printedKey, '')

  return { hide, reveal, end: `${mark}e` }
}

function* stringsIn(value: unknown): Generator<string> {
  if (typeof value === 'string') yield value
  else if (value instanceof Map || Array.isArray(value)) for (const member of value) yield* stringsIn(member)
  else if (isRecord(value)) yield* stringsIn(Object.entries(value))
}

/** Whether a value is a JSON object, parsed by JavaScript or by `parsePythonJson`. */
function isMapping(value: unknown): boolean {
  return value instanceof Map || (isRecord(value) && !(value instanceof PythonNumber))
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
