import { replaceValues, setMembers, type JsonEdit } from '../../../lib/json/json-edit.ts'
import { keepShape } from '../../../lib/json/json-shape.ts'
import { isJson, parseJsonObject } from '../../../lib/json/json-text.ts'
import type { ContentPart, Message, Tool, ToolChoice } from '../../../model/message.ts'
import type { SentSampling } from '../../../model/turn-sampling.ts'
import type { ResponseFormat, Sampling, TurnRequest } from '../../../model/turn.ts'
import { unsupportedText, type ChatFields } from './chat-fields.ts'

type WireObject = Record<string, unknown>

/** A Chat Completions request as it is sent to an engine. */
export interface ChatBody {
  text: string
  /** Paths of fields of the harness's request that are not sent to the engine. */
  dropped: readonly string[]
}

/**
 * Renders a Chat Completions request; `forced` overrides fields. A request of the same wire keeps the bytes of every field
 * in `fields` that does not have to change. A request of another wire is rendered from the model.
 */
export function renderChatBody(request: TurnRequest, forced: Readonly<WireObject>, fields: ChatFields): ChatBody {
  const imposed = { ...imposedSampling(request), ...forced }
  if (request.wire.api !== 'openai-chat') {
    const body = { ...toChatBody(request), chat_template_kwargs: templateSwitches(request, fields), ...imposed }
    return { text: JSON.stringify(body), dropped: [] }
  }
  const kept = keepShape(request.wire.text, request.wire.body, hasNoFunction(request) ? withoutTools(fields) : fields)
  const { text } = kept
  // Fields that the gateway sets itself are not missing.
  const dropped = kept.dropped.filter((path) => imposed[path] === undefined)
  const sent = request.wire.body['messages']
  if (Array.isArray(sent) && sent.length !== request.messages.length) {
    return { text: setMembers(text, { ...imposed, messages: toChatMessages(request.messages) }), dropped }
  }
  return { text: setMembers(replaceValues(text, messageEdits(request)), imposed), dropped }
}

/** Returns the allowed template variables of a Chat Completions request, which other APIs do not have. */
export function templateSwitches({ dialect, wire }: TurnRequest, { members }: ChatFields): WireObject | undefined {
  const [given, shape] = [wire.body['chat_template_kwargs'], members['chat_template_kwargs']]
  if (dialect !== 'openai-chat' || given == null || shape === undefined) return undefined
  return parseJsonObject(keepShape(JSON.stringify(given), given, shape).text)
}

/** Engines reject an empty list of tools, and a tool choice without tools. */
function hasNoFunction({ wire }: TurnRequest): boolean {
  const tools = wire.body['tools'] as readonly ({ type?: unknown } | null)[] | null | undefined
  return Array.isArray(tools) && !tools.some((tool) => tool?.type === 'function')
}

function withoutTools({ kind, members }: ChatFields): ChatFields {
  const { tools: _tools, tool_choice: _choice, parallel_tool_calls: _parallel, ...others } = members
  return { kind, members: others }
}

/** Returns the sampling parameters in the body that `renderChatBody` renders for the same request. */
export function sentSampling(request: TurnRequest, forced: Readonly<WireObject>, fields: ChatFields): SentSampling {
  const imposed = { ...imposedSampling(request), ...forced }
  const isSameWire = request.wire.api === 'openai-chat'
  const body: WireObject = isSameWire
    ? { ...allowedOf(request.wire.body, fields), ...defined(imposed) }
    : { ...toChatSampling(request.sampling), n: request.sampling.n, ...imposed }
  const number = (name: string): number | undefined => (typeof body[name] === 'number' ? body[name] : undefined)
  const { stop } = body as { stop?: unknown }
  return defined({
    temperature: number('temperature'),
    topP: number('top_p'),
    topK: number('top_k'),
    minP: number('min_p'),
    seed: number('seed'),
    maxTokens: number('max_completion_tokens') ?? number('max_tokens'),
    stop: typeof stop === 'string' ? [stop] : (stop ?? undefined),
    presencePenalty: number('presence_penalty'),
    frequencyPenalty: number('frequency_penalty'),
    repetitionPenalty: number('repetition_penalty'),
    n: number('n'),
  })
}

function allowedOf(body: Readonly<WireObject>, { members }: ChatFields): WireObject {
  return Object.fromEntries(Object.entries(body).filter(([name]) => Object.hasOwn(members, name)))
}

/** OpenAI's limit. For vLLM, -1 is the whole vocabulary. */
const MOST_ALTERNATIVES = 20

/** Returns the number of alternatives of each token that the harness requested. */
export function requestedTopLogprobs({ logprobs, wire }: TurnRequest): number {
  const requested = wire.body['top_logprobs']
  if (!logprobs || typeof requested !== 'number') return 0
  return requested < 0 ? MOST_ALTERNATIVES : Math.min(requested, MOST_ALTERNATIVES)
}

/** The sampling parameters of the task, which override those of the harness. */
export function imposedSampling(request: TurnRequest): WireObject {
  return toChatSampling(request.forcedSampling ?? {})
}

// --- the same wire ---------------------------------------------------------------------------------------------------

/** Returns the differences between the messages of the body and the messages that the engine is to read. */
function messageEdits(request: TurnRequest): JsonEdit[] {
  return request.messages.flatMap((message, i): JsonEdit[] => {
    // Templates of open models have no role `developer` and would drop the message. Its position does not change.
    const role: JsonEdit[] = message.role === 'developer' ? [{ path: ['messages', i, 'role'], json: '"system"' }] : []
    if (message.role !== 'assistant') return [...role, ...textEdits(request, i)]
    return message.toolCalls.flatMap((call, j): JsonEdit[] => {
      const sent = wireFunction(request, i, j)
      const intended = { name: call.name, arguments: toArguments(call.arguments) }
      return (['name', 'arguments'] as const)
        .filter((field) => typeof sent[field] === 'string' && sent[field] !== intended[field])
        .map((field) => ({
          path: ['messages', i, 'tool_calls', j, 'function', field],
          json: JSON.stringify(intended[field]),
        }))
    })
  })
}

/** Edits for texts that a quirk changed. Unchanged texts are the same string objects as in the body, so comparing is cheap. */
function textEdits(request: TurnRequest, message: number): JsonEdit[] {
  const sent = (request.wire.body['messages'] as { content?: string | { text?: string }[] }[])[message]?.content
  const intended = request.messages[message]?.content ?? []
  const path = ['messages', message, 'content'] as const
  if (Array.isArray(sent) && sent.length !== intended.length)
    return [{ path, json: JSON.stringify(toChatContent(intended)) }]
  return intended.flatMap((part, j): JsonEdit[] => {
    const [text, textPath] = typeof sent === 'string' ? [sent, path] : [sent?.[j]?.text, [...path, j, 'text']]
    return part.type !== 'text' || part.text === text ? [] : [{ path: textPath, json: JSON.stringify(part.text) }]
  })
}

function wireFunction(request: TurnRequest, message: number, call: number): WireObject {
  const messages = request.wire.body['messages'] as { tool_calls?: { function?: WireObject }[] }[]
  return messages[message]?.tool_calls?.[call]?.function ?? {}
}

/**
 * The engine parses the arguments in a history and rejects invalid JSON, so a session with one invalid call could not
 * continue. As one JSON string they are valid, and a template prints a string unchanged.
 */
function toArguments(sampled: string): string {
  return sampled === '' || isJson(sampled) ? sampled : JSON.stringify(sampled)
}

// --- another wire ----------------------------------------------------------------------------------------------------

function toChatBody(request: TurnRequest): WireObject {
  const { sampling, responseFormat, reasoning, toolChoice, tools } = request
  return defined({
    model: request.model,
    messages: toChatMessages(request.messages),
    stream: request.stream,
    tools: tools.length === 0 ? undefined : tools.map(toChatTool),
    tool_choice: tools.length === 0 || toolChoice === undefined ? undefined : toChatChoice(toolChoice),
    parallel_tool_calls: tools.length === 0 ? undefined : request.parallelToolCalls,
    response_format: responseFormat === undefined ? undefined : toChatFormat(responseFormat),
    reasoning_effort: reasoningEffort(reasoning),
    ...toChatSampling(sampling),
    n: sampling.n === 1 ? undefined : sampling.n,
  })
}

export function reasoningEffort(reasoning: TurnRequest['reasoning']): string | undefined {
  return reasoning?.enabled === false ? 'none' : reasoning?.effort
}

function toChatSampling(sampling: Partial<Sampling>): WireObject {
  return defined({
    temperature: sampling.temperature,
    top_p: sampling.topP,
    top_k: sampling.topK,
    min_p: sampling.minP,
    seed: sampling.seed,
    max_completion_tokens: sampling.maxTokens,
    stop: sampling.stop,
    presence_penalty: sampling.presencePenalty,
    frequency_penalty: sampling.frequencyPenalty,
  })
}

/** A tool message can only contain text, so the images of consecutive tool results follow them as a user message. */
function toChatMessages(messages: readonly Message[]): WireObject[] {
  const wire: WireObject[] = []
  let images: ContentPart[] = []
  for (const message of messages) {
    if (message.role !== 'tool' && images.length > 0) {
      wire.push({ role: 'user', content: images.map(toChatPart) })
      images = []
    }
    if (message.role === 'tool') images.push(...message.content.filter((part) => part.type === 'image'))
    wire.push(toChatMessage(message))
  }
  if (images.length > 0) wire.push({ role: 'user', content: images.map(toChatPart) })
  return wire
}

function toChatMessage(message: Message): WireObject {
  switch (message.role) {
    case 'system':
    case 'developer':
      return { role: 'system', content: toChatContent(message.content) }
    case 'user':
      return { role: 'user', content: toChatContent(message.content) }
    case 'tool': {
      const texts = message.content.filter((part) => part.type === 'text')
      // This wire has no field for a failed tool.
      const content = message.isError ? [{ type: 'text' as const, text: TOOL_FAILED }, ...texts] : texts
      return { role: 'tool', tool_call_id: message.toolCallId, content: toChatContent(content) }
    }
    case 'assistant': {
      // One text, as sampled: templates join parts with a separator.
      const text = message.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
      return defined({
        role: 'assistant',
        content: text === '' && message.toolCalls.length > 0 ? null : text,
        reasoning_content: message.reasoning,
        tool_calls: message.toolCalls.length === 0 ? undefined : message.toolCalls.map(toChatCall),
      })
    }
  }
}

const TOOL_FAILED = 'The tool reported an error.'

function toChatContent(content: readonly ContentPart[]): string | WireObject[] {
  const [only, ...more] = content
  if (only === undefined) return ''
  return more.length === 0 && only.type === 'text' ? only.text : content.map(toChatPart)
}

function toChatPart(part: ContentPart): WireObject {
  switch (part.type) {
    case 'text':
      return { type: 'text', text: part.text }
    case 'image':
      return { type: 'image_url', image_url: defined({ url: part.url, detail: part.detail }) }
    case 'other':
      return { type: 'text', text: unsupportedText(part.wire) }
  }
}

function toChatCall(call: { id: string; name: string; arguments: string }): WireObject {
  return { id: call.id, type: 'function', function: { name: call.name, arguments: toArguments(call.arguments) } }
}

function toChatTool({ name, description, parameters, strict }: Tool): WireObject {
  return { type: 'function', function: defined({ name, description, parameters, strict }) }
}

function toChatChoice(choice: ToolChoice): string | WireObject {
  return typeof choice === 'string' ? choice : { type: 'function', function: { name: choice.name } }
}

function toChatFormat(format: ResponseFormat): WireObject {
  switch (format.type) {
    case 'text':
      return { type: 'text' }
    case 'json-object':
      return { type: 'json_object' }
    case 'json-schema':
      return {
        type: 'json_schema',
        json_schema: defined({ name: format.name, schema: format.schema, strict: format.strict }),
      }
  }
}

function defined(fields: WireObject): WireObject {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}
