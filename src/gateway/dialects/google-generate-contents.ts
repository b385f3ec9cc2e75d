import { listOf } from '../../lib/json/list-of.ts'
import { isRecord, parseJson, parseJsonObject } from '../../lib/json/json-text.ts'
import * as z from 'zod'
import type { AssistantMessage, ContentPart, Message, ToolCall } from '../../model/message.ts'
import { appendParts, type TextSealer } from './dialect.ts'

// --- wire schemas ----------------------------------------------------------------------------------------------------

/** Some clients write camelCase, some the snake_case of protocol buffers; the API accepts both everywhere. */
export function loose<Shape extends z.ZodRawShape>(shape: Shape) {
  return z.preprocess(camelKeys, z.looseObject(shape))
}

function camelKeys(value: unknown): unknown {
  if (!isRecord(value) || !Object.keys(value).some((key) => key.includes('_'))) return value
  const entries = Object.entries(value).map(([key, child]) => ({ key, name: camelCase(key), child }))
  // If both spellings are present, camelCase takes precedence, so it is written last.
  const ordered = entries.toSorted((a, b) => Number(a.key === a.name) - Number(b.key === b.name))
  return Object.fromEntries(ordered.map(({ name, child }) => [name, child]))
}

function camelCase(key: string): string {
  return key.replaceAll(/(?<=[a-z])_([a-z])/g, (_, letter: string) => letter.toUpperCase())
}

/** A repeated field. Google's own examples omit the brackets of a single item. */
export function many<Items extends z.ZodType>(items: Items) {
  return z.preprocess((value) => (isRecord(value) || typeof value === 'string' ? [value] : value), items)
}

const WireMedia = {
  inlineData: loose({ mimeType: z.string().nullish(), data: z.string().nullish() }).nullish(),
  fileData: loose({ mimeType: z.string().nullish(), fileUri: z.string().nullish() }).nullish(),
}

const WireFunctionCall = loose({ id: z.string().nullish(), name: z.string(), args: z.unknown().optional() })
type WireFunctionCall = z.infer<typeof WireFunctionCall>

const WireFunctionResponse = loose({
  id: z.string().nullish(),
  name: z.string().nullish(),
  response: z.unknown().optional(),
  parts: many(listOf(loose(WireMedia)).nullish()).optional(),
})
type WireFunctionResponse = z.infer<typeof WireFunctionResponse>

const WirePart = z.preprocess(
  (value) => (typeof value === 'string' ? { text: value } : camelKeys(value)),
  z.looseObject({
    text: z.string().nullish(),
    thought: z.boolean().nullish(),
    thoughtSignature: z.string().nullish(),
    ...WireMedia,
    functionCall: WireFunctionCall.nullish(),
    functionResponse: WireFunctionResponse.nullish(),
  }),
)
type WirePart = z.infer<typeof WirePart>

/** A content, or a single part or text instead of one. */
export const WireContent = z.preprocess(
  (value) => {
    if (typeof value === 'string') return { parts: [{ text: value }] }
    return isRecord(value) && value['parts'] === undefined && value['text'] !== undefined ? { parts: [value] } : value
  },
  z.looseObject({
    role: z.enum(['user', 'model', 'function', 'system', 'tool', 'assistant', 'developer']).nullish(),
    parts: many(listOf(WirePart).nullish()).optional(),
  }),
)
export type WireContent = z.infer<typeof WireContent>

// --- contents to messages --------------------------------------------------------------------------------------------

export function toMessages(contents: readonly WireContent[], sealer: TextSealer): Message[] {
  const history = new History(sealer)
  for (const content of contents) history.add(content)
  return history.messages
}

interface OpenCall {
  id: string
  name: string
  /** The client sent no id, so the result may have an unknown id. */
  isGenerated: boolean
}

/** Calls of a turn that have no result yet, in their order. */
class OpenCalls {
  readonly #byKey = new Map<string, Set<OpenCall>>()

  add(call: OpenCall): void {
    for (const key of keysOf(call)) {
      const calls = this.#byKey.get(key)
      if (calls === undefined) this.#byKey.set(key, new Set([call]))
      else calls.add(call)
    }
  }

  /** Returns the call of a result: by id, or the first call of the name when the result or the calls have no id. */
  find({ id, name }: WireFunctionResponse): OpenCall | undefined {
    return id ? (this.#first(`id ${id}`) ?? this.#first(`generated ${name}`)) : this.#first(`name ${name}`)
  }

  close(call: OpenCall): void {
    for (const key of keysOf(call)) this.#byKey.get(key)?.delete(call)
  }

  #first(key: string): OpenCall | undefined {
    return this.#byKey.get(key)?.values().next().value
  }
}

function keysOf({ id, name, isGenerated }: OpenCall): string[] {
  return [`id ${id}`, `name ${name}`, ...(isGenerated ? [`generated ${name}`] : [])]
}

/** A tool result in a content, with the media that follow it. */
interface OpenResult {
  content: ContentPart[]
  media: Set<string>
  isRepeat: boolean
}

class History {
  readonly messages: Message[] = []
  readonly #sealer: TextSealer
  #open = new OpenCalls()
  #callCount = 0
  /** Extended by consecutive `model` contents: Google's chat helper stores one content for each chunk. */
  #turn: { message: AssistantMessage; thoughts: string; sealed: string } | undefined

  constructor(sealer: TextSealer) {
    this.#sealer = sealer
  }

  add({ role, parts: given }: WireContent): void {
    const parts = given ?? []
    switch (role ?? (parts.some((part) => part.functionCall != null) ? 'model' : 'user')) {
      case 'model':
      case 'assistant':
        this.#addModel(parts)
        return
      case 'system':
        this.#push({ role: 'system', content: parts.flatMap(toContent) })
        return
      case 'developer':
        this.#push({ role: 'developer', content: parts.flatMap(toContent) })
        return
      case 'user':
      case 'function':
      case 'tool':
        this.#addUser(parts)
        return
    }
  }

  #push(message: Message): void {
    this.messages.push(message)
    this.#turn = undefined
  }

  #addModel(parts: readonly WirePart[]): void {
    let turn = this.#turn
    if (turn === undefined) {
      const message: AssistantMessage = { role: 'assistant', content: [], toolCalls: [] }
      this.#push(message)
      // Calls of an earlier turn without a result get none anymore.
      this.#open = new OpenCalls()
      this.#turn = turn = { message, thoughts: '', sealed: '' }
    }
    for (const part of parts) {
      const seal = openSeal(part.thoughtSignature, this.#sealer)
      // Every seal contains all reasoning before its part, so the last seal is complete.
      if (seal.reasoning !== undefined) turn.sealed = seal.reasoning
      if (part.functionCall != null) turn.message.toolCalls.push(this.#openCall(part.functionCall, seal.callId))
      else if (part.thought === true) turn.thoughts += part.text ?? ''
      else appendParts(turn.message.content, toContent(part))
    }
    const reasoning = turn.sealed || turn.thoughts
    if (reasoning !== '') turn.message.reasoning = reasoning
  }

  #openCall(call: WireFunctionCall, sealedId: string | undefined): ToolCall {
    const id = call.id || sealedId || `call_${this.#callCount}_${call.name}`
    this.#callCount += 1
    this.#open.add({ id, name: call.name, isGenerated: !call.id })
    return { id, name: call.name, arguments: toArguments(call.args) }
  }

  /** Tool results precede the other content: engines expect them directly after their calls. */
  #addUser(parts: readonly WirePart[]): void {
    const others: ContentPart[] = []
    const results = new Map<string, OpenResult>()
    let result: OpenResult | undefined
    for (const part of parts) {
      if (part.functionResponse != null) result = this.#addResult(part.functionResponse, results)
      // Media directly after a result belong to the result.
      else if (result !== undefined && (part.inlineData != null || part.fileData != null)) addMedia(result, part)
      else {
        others.push(...toContent(part))
        result = undefined
      }
    }
    if (others.length > 0) this.#push({ role: 'user', content: others })
  }

  /**
   * Gemini CLI repeats the results of a resumed session within their content, with their media. A result of a call without
   * a result so far is no repetition: without ids, two calls of one tool may have equal results.
   */
  #addResult(response: WireFunctionResponse, results: Map<string, OpenResult>): OpenResult {
    const key = JSON.stringify([response.id, response.name, response.response])
    const known = results.get(key)
    const call = this.#open.find(response)
    if (known !== undefined && call === undefined) {
      known.isRepeat = true
      return known
    }
    if (call !== undefined) this.#open.close(call)
    const { text, isError } = toResult(response)
    const content: ContentPart[] = text === '' ? [] : [{ type: 'text', text }]
    for (const part of response.parts ?? []) content.push(...toContent(part))
    const toolCallId = call?.id ?? (response.id || `result_of_${response.name ?? 'unknown'}`)
    this.#push({ role: 'tool', toolCallId, content, isError: isError || undefined })
    const result = { content, media: new Set<string>(), isRepeat: false }
    results.set(key, result)
    return result
  }
}

function addMedia({ content, media, isRepeat }: OpenResult, part: WirePart): void {
  for (const one of toContent(part)) {
    const json = JSON.stringify(one)
    if (!isRepeat || !media.has(json)) content.push(one)
    media.add(json)
  }
}

/** Empty for a part without content, such as a part with nothing but a signature. */
function toContent(part: Partial<WirePart>): ContentPart[] {
  if (part.text != null) return part.text === '' ? [] : [{ type: 'text', text: part.text }]
  const url = toImageUrl(part)
  if (url !== undefined) return [{ type: 'image', url }]
  const { thoughtSignature: _, thought: __, ...payload } = part
  return Object.values(payload).some((value) => value != null) ? [{ type: 'other', wire: part }] : []
}

function toImageUrl({ inlineData, fileData }: Partial<WirePart>): string | undefined {
  if (inlineData?.data != null && inlineData.mimeType?.startsWith('image/')) {
    // Some clients use the URL-safe alphabet, which data URLs do not allow.
    const data = inlineData.data.replaceAll('-', '+').replaceAll('_', '/')
    return `data:${inlineData.mimeType};base64,${data}`
  }
  const { fileUri, mimeType } = fileData ?? {}
  // Engines cannot read Cloud Storage or the Files API.
  if (fileUri == null || !/^(https?|data):/.test(fileUri)) return undefined
  const isImage = mimeType == null ? /\.(png|jpe?g|gif|webp|bmp)([?#]|$)/i.test(fileUri) : mimeType.startsWith('image/')
  return isImage ? fileUri : undefined
}

/**
 * Returns the text of a tool result. Google specifies `output` and `error`, its examples use `result`, and the AI SDK sends
 * `content` with the name of the tool.
 */
function toResult({ response, name }: WireFunctionResponse): { text: string; isError: boolean } {
  if (!isRecord(response)) return { text: toText(response), isError: false }
  const fields = Object.entries(response).filter(([key, value]) => value != null && !(key === 'name' && value === name))
  const isError = response['error'] != null
  const [only] = fields
  if (only === undefined) return { text: '', isError }
  const isWrapped = fields.length === 1 && ['output', 'error', 'result', 'content'].includes(only[0])
  return { text: toText(isWrapped ? only[1] : response), isError }
}

function toText(value: unknown): string {
  if (typeof value === 'string') return value
  return value == null ? '' : JSON.stringify(value)
}

// --- arguments -------------------------------------------------------------------------------------------------------

/** The key for arguments that are not a JSON object. */
const UNPARSED = '__unparsed_arguments'

/**
 * Parses sampled arguments, because they are an object in this API. Text that is not a JSON object becomes the only value of
 * an object: no tool has such an argument, so Gemini CLI answers the call with an error, which the model reads. The
 * alternatives hide the mistake from the model (`{}` runs tools without required arguments, the finish reason
 * MALFORMED_FUNCTION_CALL makes the harness repeat the request) or break typed clients (a string). `toArguments` restores
 * the text from the history.
 */
export function toArgs(text: string): Readonly<Record<string, unknown>> {
  if (text.trim() === '') return {}
  return parseJsonObject(text) ?? { [UNPARSED]: text }
}

/** The inverse of `toArgs`, up to the notation of JSON. */
function toArguments(args: unknown): string {
  if (typeof args === 'string') return args
  if (!isRecord(args)) return args == null ? '{}' : JSON.stringify(args)
  const unparsed = args[UNPARSED]
  return typeof unparsed === 'string' && Object.keys(args).length === 1 ? unparsed : JSON.stringify(args)
}

// --- signatures ------------------------------------------------------------------------------------------------------

/**
 * The content of a signature: all reasoning before its part, and the id of a call. Harnesses return signatures unchanged,
 * but Gemini CLI returns no thoughts, and pi and the AI SDK return no ids unless the model is named like Gemini 3.
 */
const Seal = z.object({ reasoning: z.string().optional(), callId: z.string().optional() })
type Seal = z.infer<typeof Seal>

/** Renders a `thoughtSignature` as padded standard base64, because clients validate (pi) or decode it (Go, Python). */
export function closeSeal(seal: Seal, sealer: TextSealer): string {
  const sealed = sealer.seal(JSON.stringify(seal)).replaceAll('-', '+').replaceAll('_', '/')
  return sealed.padEnd(Math.ceil(sealed.length / 4) * 4, '=')
}

/** Empty for other signatures, such as the `skip_thought_signature_validator` of clients that have none. */
function openSeal(signature: string | null | undefined, sealer: TextSealer): Seal {
  if (!signature) return {}
  const [sealed = ''] = signature.replaceAll('+', '-').replaceAll('/', '_').split('=', 1)
  const text = sealer.open(sealed)
  return text === undefined ? {} : (Seal.safeParse(parseJson(text)).data ?? {})
}
