import { listOf } from '../../lib/json/list-of.ts'
import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { AssistantMessage, ContentPart, Message } from '../../model/message.ts'
import type { WireFields } from '../wire-event.ts'
import { appendParts } from './dialect.ts'

/*
 * Converts the `input` of the Responses API to messages. The input is a flat list of items, and one turn of the model is
 * several consecutive items, which become one message.
 */

// --- wire schemas -----------------------------------------------------------------------------------------------------

/** Files and parts of unknown types are kept unchanged. */
const Part = z.looseObject({ type: z.string() }).transform((part, context): ContentPart => {
  const schema = Object.hasOwn(partSchemas, part.type) ? partSchemas[part.type] : undefined
  if (schema === undefined) return { type: 'other', wire: part }
  const parsed = schema.safeParse(part)
  if (parsed.success) return parsed.data ?? { type: 'other', wire: part }
  for (const issue of parsed.error.issues) context.addIssue({ ...issue })
  return z.NEVER
})

const TextPart = z.looseObject({ text: z.string() }).transform(({ text }): ContentPart => ({ type: 'text', text }))

const partSchemas: Readonly<Record<string, z.ZodType<ContentPart | undefined>>> = {
  input_text: TextPart,
  output_text: TextPart,
  text: TextPart,
  // Sampled text, which OpenAI's models mark as a refusal.
  refusal: z.looseObject({ refusal: z.string() }).transform(({ refusal }) => ({ type: 'text', text: refusal })),
  input_image: z
    .looseObject({
      image_url: z.union([z.string(), z.looseObject({ url: z.string() }).transform(({ url }) => url)]).nullish(),
      detail: z.string().nullish(),
    })
    // An uploaded file has an id instead of a URL, and there is no file store.
    .transform(({ image_url: url, detail }) =>
      url == null ? undefined : { type: 'image', url, detail: detail ?? undefined },
    ),
}

const Content = z
  .union([z.string().transform((text): ContentPart[] => (text === '' ? [] : [{ type: 'text', text }])), listOf(Part)])
  .nullish()
  .transform((parts) => parts ?? [])

const Texts = listOf(z.looseObject({ text: z.string().nullish() })).nullish()
const id = z.string().nullish()
const fields = z.looseObject({}).nullish()

const itemSchemas = {
  message: z.looseObject({
    type: literal('message'),
    id,
    role: z.enum(['user', 'assistant', 'system', 'developer']),
    content: Content,
  }),
  reasoning: z.looseObject({
    type: literal('reasoning'),
    id,
    summary: Texts,
    content: Texts,
    encrypted_content: z.string().nullish(),
  }),
  function_call: z.looseObject({
    type: literal('function_call'),
    id,
    call_id: id,
    name: z.string(),
    namespace: z.string().nullish(),
    arguments: z.string().nullish(),
  }),
  custom_tool_call: z.looseObject({
    type: literal('custom_tool_call'),
    id,
    call_id: id,
    name: z.string(),
    namespace: z.string().nullish(),
    input: z.string(),
  }),
  tool_search_call: z.looseObject({
    type: literal('tool_search_call'),
    id,
    call_id: id,
    arguments: z.unknown().optional(),
  }),
  local_shell_call: z.looseObject({ type: literal('local_shell_call'), id, call_id: id, action: fields }),
  shell_call: z.looseObject({ type: literal('shell_call'), id, call_id: id, action: fields }),
  apply_patch_call: z.looseObject({ type: literal('apply_patch_call'), id, call_id: id, operation: fields }),
  function_call_output: z.looseObject({ type: literal('function_call_output'), call_id: id, output: Content }),
  custom_tool_call_output: z.looseObject({ type: literal('custom_tool_call_output'), call_id: id, output: Content }),
  local_shell_call_output: z.looseObject({
    type: literal('local_shell_call_output'),
    id,
    call_id: id,
    output: Content,
  }),
  shell_call_output: z.looseObject({ type: literal('shell_call_output'), call_id: id, output: z.unknown().optional() }),
  apply_patch_call_output: z.looseObject({
    type: literal('apply_patch_call_output'),
    call_id: id,
    status: z.string().nullish(),
    output: z.string().nullish(),
  }),
  tool_search_output: z.looseObject({
    type: literal('tool_search_output'),
    call_id: id,
    tools: z.array(z.unknown()).nullish(),
  }),
  additional_tools: z.looseObject({ type: literal('additional_tools'), tools: z.array(z.unknown()).nullish() }),
  agent_message: z.looseObject({ type: literal('agent_message'), content: Content }),
  compaction: z.looseObject({ type: literal('compaction'), encrypted_content: z.string().nullish() }),
  compaction_trigger: z.looseObject({ type: literal('compaction_trigger') }),
  configuration_update: z.looseObject({
    type: literal('configuration_update'),
    reasoning: z.looseObject({ effort: z.string().nullish() }).nullish(),
    text: z.looseObject({ format: z.looseObject({ type: z.string() }).nullish() }).nullish(),
  }),
  item_reference: z.looseObject({ type: literal('item_reference'), id: z.string() }),
}

/** Messages and references may omit the type. */
function literal<T extends string>(type: T) {
  return z
    .literal(type)
    .nullish()
    .transform(() => type)
}

type KnownItem = { [K in keyof typeof itemSchemas]: z.infer<(typeof itemSchemas)[K]> }[keyof typeof itemSchemas]
/** Items of OpenAI's own tools, and items of newer types. */
interface UnknownItem {
  type: 'unknown'
}
export type WireItem = KnownItem | UnknownItem

const WireItem = z.looseObject({ type: z.string().nullish() }).transform((item, context): WireItem => {
  const type = item.type ?? (item['role'] === undefined && item['id'] !== undefined ? 'item_reference' : 'message')
  if (!Object.hasOwn(itemSchemas, type)) return { type: 'unknown' }
  const parsed = itemSchemas[type as keyof typeof itemSchemas].safeParse(item)
  if (parsed.success) return parsed.data
  for (const issue of parsed.error.issues) context.addIssue({ ...issue })
  return z.NEVER
})

export const WireInput = z.union([
  z.string().transform((text): WireItem[] => [{ type: 'message', role: 'user', content: [{ type: 'text', text }] }]),
  listOf(WireItem),
])

// --- reading ----------------------------------------------------------------------------------------------------------

type CallItem = Extract<KnownItem, { type: `${string}_call` }>

export interface InputDeps {
  readCall(item: WireFields & Pick<CallItem, 'type'>): { name: string; arguments: string }
  describeTools(tools: readonly unknown[]): string
  open(sealed: string): string | undefined
  /** Returns the id of the answer that an item id belongs to; undefined for an id of another origin. */
  answerOf(itemId: string): string | undefined
  recall(answerId: string): readonly Message[] | undefined
}

/** `history` precedes the input and is not changed. */
export function readInput(items: readonly WireItem[], history: readonly Message[], deps: InputDeps): Message[] {
  const transcript = new Transcript(history)
  for (const [position, item] of items.entries()) readItem(item, position, transcript, deps)
  transcript.dropAbandoned()
  return transcript.messages
}

function readItem(item: WireItem, position: number, transcript: Transcript, deps: InputDeps): void {
  const answer = 'id' in item && typeof item.id === 'string' ? deps.answerOf(item.id) : undefined
  switch (item.type) {
    case 'message':
      if (item.role === 'assistant') appendParts(transcript.assistant(answer).content, item.content)
      else transcript.add({ role: item.role, content: item.content })
      return
    case 'agent_message':
      transcript.add({ role: 'user', content: item.content })
      return
    case 'reasoning': {
      const reasoning = reasoningOf(item, deps)
      if (reasoning === '') return
      const message = transcript.assistant(answer)
      message.reasoning = (message.reasoning ?? '') + reasoning
      return
    }
    case 'function_call':
    case 'custom_tool_call':
    case 'tool_search_call':
    case 'local_shell_call':
    case 'shell_call':
    case 'apply_patch_call': {
      const callId = item.call_id ?? item.id ?? ''
      if (item.id != null) transcript.callIds.set(item.id, callId)
      transcript.assistant(answer).toolCalls.push({ id: callId, ...deps.readCall(item) })
      return
    }
    case 'function_call_output':
    case 'custom_tool_call_output':
      transcript.addResult(item.call_id, item.output)
      return
    case 'local_shell_call_output': {
      // The API specifies the id of the call's item; Codex sends the call id.
      const callId = item.call_id ?? (item.id == null ? undefined : (transcript.callIds.get(item.id) ?? item.id))
      transcript.addResult(callId, item.output)
      return
    }
    case 'shell_call_output':
      transcript.addResult(item.call_id, [{ type: 'text', text: toText(item.output) }])
      return
    case 'apply_patch_call_output': {
      const text = item.output || item.status || ''
      transcript.addResult(item.call_id, text === '' ? [] : [{ type: 'text', text }], item.status === 'failed')
      return
    }
    case 'tool_search_output':
      transcript.addResult(item.call_id, [{ type: 'text', text: deps.describeTools(item.tools ?? []) }])
      return
    case 'compaction': {
      const summary = item.encrypted_content == null ? undefined : deps.open(item.encrypted_content)
      if (summary !== undefined) transcript.add({ role: 'user', content: [{ type: 'text', text: summary }] })
      return
    }
    case 'item_reference':
      transcript.refer(answer, deps, { id: item.id, position })
      return
    case 'additional_tools':
    case 'compaction_trigger':
    case 'configuration_update':
    case 'unknown':
      return
  }
}

function toText(output: unknown): string {
  return typeof output === 'string' ? output : JSON.stringify(output ?? null)
}

/** Returns the text, else the sealed text, else the summary of another model. */
function reasoningOf(item: Extract<KnownItem, { type: 'reasoning' }>, deps: InputDeps): string {
  const content = textOf(item.content)
  if (content !== '') return content
  const opened = item.encrypted_content == null ? undefined : deps.open(item.encrypted_content)
  return opened ?? textOf(item.summary)
}

function textOf(parts: z.infer<typeof Texts>): string {
  return (parts ?? []).map((part) => part.text ?? '').join('')
}

/**
 * The messages so far. Consecutive items of the assistant are one turn, unless their ids belong to two answers. A harness
 * may put the results of parallel calls between the calls; the ids show that these calls belong to one turn.
 */
class Transcript {
  readonly messages: Message[]
  /** Call ids by item id. */
  readonly callIds = new Map<string, string>()
  #current: AssistantMessage | undefined
  #answer: string | undefined
  #hasResults = false

  constructor(history: readonly Message[]) {
    this.messages = [...history]
  }

  add(message: Message): void {
    this.messages.push(message)
    this.#current = undefined
  }

  addResult(callId: string | null | undefined, content: ContentPart[], isError = false): void {
    this.messages.push({ role: 'tool', toolCallId: callId ?? '', content, isError: isError || undefined })
    this.#hasResults = true
  }

  /** Returns the message of the turn that an item belongs to. */
  assistant(answer: string | undefined): AssistantMessage {
    const isSame = this.#hasResults
      ? answer !== undefined && answer === this.#answer
      : answer === undefined || this.#answer === undefined || answer === this.#answer
    if (this.#current === undefined || !isSame) {
      this.dropAbandoned()
      this.#current = { role: 'assistant', content: [], toolCalls: [] }
      this.#hasResults = false
      this.#answer = undefined
      this.messages.push(this.#current)
    }
    this.#answer ??= answer
    return this.#current
  }

  /**
   * Drops the reasoning of an aborted answer. Codex keeps the items of an answer that broke off, and retries. Reasoning that
   * is followed only by a retry is dropped, so that the retry has the same prompt as the first request.
   */
  dropAbandoned(): void {
    const last = this.messages.at(-1)
    if (last === undefined || last !== this.#current) return
    if (this.#current.content.length === 0 && this.#current.toolCalls.length === 0) this.messages.pop()
  }

  /** Adds the whole answer at the first reference to one of its items; further references add nothing. */
  refer(answer: string | undefined, deps: InputDeps, item: { id: string; position: number }): void {
    if (answer !== undefined && answer === this.#answer && this.#current !== undefined) return
    const message = answer === undefined ? undefined : deps.recall(answer)?.at(-1)
    if (message?.role !== 'assistant') {
      throw new RolloutError('request.malformed', `Item with id '${item.id.slice(0, 100)}' not found.`, {
        status: 404,
        param: `input[${item.position}].id`,
      })
    }
    const { content, toolCalls, reasoning } = message
    const turn = this.assistant(answer)
    appendParts(turn.content, content)
    turn.toolCalls.push(...toolCalls)
    if (reasoning !== undefined) turn.reasoning = (turn.reasoning ?? '') + reasoning
  }
}
