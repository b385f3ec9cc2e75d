import * as z from 'zod'
import { firstIssue } from '../../lib/json/first-issue.ts'
import { isRecord, parseJsonObject } from '../../lib/json/json-text.ts'
import { listOf } from '../../lib/json/list-of.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import {
  textOf,
  type AssistantMessage,
  type ContentPart,
  type Message,
  type Tool,
  type ToolCall,
  type ToolChoice,
} from '../../model/message.ts'
import type { AnswerStart, ChoiceDelta } from '../../model/stream-event.ts'
import type { WireFields } from '../wire-event.ts'
import type { FinishReason, ResponseFormat, TurnRequest, TurnResponse, Usage } from '../../model/turn.ts'
import { BlockStream, callId, frame } from './anthropic-messages-blocks.ts'
import {
  appendParts,
  type Answer,
  type Dialect,
  type JsonBody,
  type RenderedError,
  type RequestContext,
  type StreamRenderer,
  type TextSealer,
} from './dialect.ts'

// --- wire schemas -----------------------------------------------------------------------------------------------------

const WireSource = z.looseObject({
  type: z.string(),
  media_type: z.string().nullish(),
  data: z.string().nullish(),
  url: z.string().nullish(),
})

/** A tool without `input_schema` runs at the vendor, or has a schema that only its models have learned. */
const WireTool = z.looseObject({
  type: z.string().nullish(),
  name: z.string().nullish(),
  description: z.string().nullish(),
  input_schema: z.looseObject({}).nullish(),
  strict: z.boolean().nullish(),
  defer_loading: z.boolean().nullish(),
})

/** The tool that a system message adds or removes: by name, or with its definition. */
const WireToolChange = z.looseObject({ name: z.string().nullish(), definition: WireTool.nullish() })

const sourceBlocks = [
  z.looseObject({ type: z.literal('text'), text: z.string() }),
  z.looseObject({ type: z.literal('image'), source: WireSource }),
] as const
const WireSourceBlock = z.union([otherThan(sourceBlocks), z.discriminatedUnion('type', sourceBlocks)])

/** A source of type `content` contains blocks or one string. */
const WireDocumentSource = WireSource.extend({ content: z.union([z.string(), listOf(WireSourceBlock)]).nullish() })

const resultBlocks = [
  ...sourceBlocks,
  z.looseObject({ type: z.literal('document'), source: WireDocumentSource }),
  z.looseObject({
    type: z.literal('search_result'),
    title: z.string().nullish(),
    source: z.string().nullish(),
    content: listOf(WireSourceBlock).nullish(),
  }),
  z.looseObject({ type: z.literal('tool_reference'), tool_name: z.string() }),
] as const
const WireResultBlock = z.union([otherThan(resultBlocks), z.discriminatedUnion('type', resultBlocks)])

const messageBlocks = [
  ...resultBlocks,
  z.looseObject({ type: z.literal('thinking'), thinking: z.string().nullish(), signature: z.string().nullish() }),
  z.looseObject({ type: z.literal('redacted_thinking'), data: z.string().nullish() }),
  z.looseObject({ type: z.literal('tool_use'), id: z.string(), name: z.string(), input: z.unknown() }),
  z.looseObject({
    type: z.literal('tool_result'),
    tool_use_id: z.string(),
    content: z.union([z.string(), listOf(WireResultBlock)]).nullish(),
    is_error: z.boolean().nullish(),
  }),
  z.looseObject({ type: z.literal('tool_addition'), tool: WireToolChange }),
  z.looseObject({ type: z.literal('tool_removal'), tool: WireToolChange }),
] as const
const WireBlock = z.union([otherThan(messageBlocks), z.discriminatedUnion('type', messageBlocks)])
type WireBlock = z.infer<typeof WireBlock>

const WireContent = z.union([z.string(), listOf(WireBlock)]).nullish()
type WireContent = z.infer<typeof WireContent>

const WireRole = z.enum(['user', 'assistant', 'system'])
type WireRole = z.infer<typeof WireRole>

const WireMessage = z.looseObject({ role: WireRole, content: WireContent })

const WireToolChoice = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('auto'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('any'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('none'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('tool'), name: z.string(), disable_parallel_tool_use: z.boolean().nullish() }),
])

const WireFormat = z.looseObject({ type: z.string(), schema: z.unknown() })

const WireRequest = z.looseObject({
  model: z.string(),
  messages: listOf(WireMessage, { min: 1 }),
  system: WireContent,
  max_tokens: z.int().min(0).nullish(),
  tools: listOf(WireTool).nullish(),
  tool_choice: WireToolChoice.nullish(),
  thinking: z.looseObject({ type: z.string(), display: z.string().nullish() }).nullish(),
  output_config: z.looseObject({ effort: z.string().nullish(), format: WireFormat.nullish() }).nullish(),
  output_format: WireFormat.nullish(),
  stop_sequences: listOf(z.string()).nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: z.int().nullish(),
  stream: z.boolean().nullish(),
  thread: z.looseObject({ type: z.string() }).nullish(),
})
type WireRequest = z.infer<typeof WireRequest>

/** A block of an unknown type. Rejects blocks of known types, so that errors name their invalid fields. */
function otherThan(known: readonly z.ZodObject<{ type: z.ZodLiteral<string> }>[]) {
  const types = new Set(known.map((block) => block.shape.type.value))
  return z
    .looseObject({ type: z.string() })
    .refine((block) => !types.has(block.type))
    .transform((wire) => ({ type: 'other' as const, wire }))
}

// --- parse request ----------------------------------------------------------------------------------------------------

function parseRequest(body: JsonBody, context: RequestContext): TurnRequest {
  if (!isRecord(body.value)) throw new RolloutError('request.malformed', 'The request body must be a JSON object.')
  const parsed = WireRequest.safeParse(body.value)
  if (!parsed.success) throw malformed(parsed.error)
  const wire = parsed.data
  if (context.route.kind === 'generate' && wire.max_tokens == null) throw malformedField('max_tokens', 'Field required')
  if (wire.thread?.type === 'continue')
    throw malformedField('thread', 'Conversations are not stored; send all messages')
  const tools = toTools(wire)
  return {
    dialect: 'anthropic-messages',
    model: wire.model,
    messages: [...toSystem(wire.system), ...toMessages(wire, context.sealer)],
    tools,
    toolChoice: toToolChoice(wire.tool_choice, tools),
    parallelToolCalls: toParallel(wire.tool_choice?.disable_parallel_tool_use),
    responseFormat: toResponseFormat(wire.output_config?.format ?? wire.output_format),
    reasoning: toReasoning(wire),
    sampling: {
      temperature: wire.temperature ?? undefined,
      topP: wire.top_p ?? undefined,
      topK: wire.top_k ?? undefined,
      maxTokens: wire.max_tokens ?? undefined,
      stop: wire.stop_sequences?.length ? wire.stop_sequences : undefined,
      n: 1,
    },
    stream: wire.stream ?? false,
    streamUsage: true,
    logprobs: false,
    wire: { api: 'anthropic-messages', text: body.text, body: body.value },
  }
}

/** Reports the first problem in Anthropic's format: the path with dots, a colon, the problem. */
function malformed(error: z.ZodError): RolloutError {
  const { path, message } = firstIssue(error)
  return malformedField(path.map(String).join('.'), message)
}

function malformedField(param: string, message: string): RolloutError {
  return new RolloutError('request.malformed', param ? `${param}: ${message}` : message, { param: param || undefined })
}

/** The system prompt is one message, even if it has several blocks. */
function toSystem(system: WireContent): Message[] {
  const messages: { role: 'system'; content: ContentPart[] }[] = []
  for (const part of toContent(system)) {
    const last = messages.at(-1)
    // A billing line always begins a message, so only the first part can be one.
    if (last?.content[0] === undefined || isBillingLine(part) || isBillingLine(last.content[0])) {
      messages.push({ role: 'system', content: [part] })
    } else {
      last.content.push(part)
    }
  }
  return messages
}

/**
 * Claude Code begins the system prompt with a block that contains a hash of the first prompt. The block becomes a separate
 * message, so that a quirk can remove it without changing the prompt.
 */
function isBillingLine(part: ContentPart): boolean {
  return part.type === 'text' && part.text.startsWith('x-anthropic-billing-header:')
}

function toMessages(wire: WireRequest, sealer: TextSealer): Message[] {
  return toTurns(wire).flatMap(({ role, blocks }): Message[] => {
    switch (role) {
      case 'user':
        return toUserMessages(blocks)
      case 'assistant':
        return [toAssistant(blocks, sealer)]
      case 'system': {
        const content = toContent(blocks)
        return content.length > 0 ? [{ role, content }] : []
      }
    }
  })
}

/** Consecutive assistant messages are one turn, as the API specifies and as they were sampled. */
function toTurns({ messages }: WireRequest): { role: WireRole; blocks: WireBlock[] }[] {
  const turns: { role: WireRole; blocks: WireBlock[] }[] = []
  for (const { role, content } of messages) {
    const last = turns.at(-1)
    if (role === 'assistant' && last?.role === role) for (const block of toBlocks(content)) last.blocks.push(block)
    else turns.push({ role, blocks: [...toBlocks(content)] })
  }
  return turns
}

/** Tool results come first, directly after their calls; the other content of the message follows. */
function toUserMessages(blocks: WireBlock[]): Message[] {
  const results = blocks.flatMap((block): Message[] => {
    if (block.type !== 'tool_result') return []
    const isError = block.is_error ?? undefined
    return [{ role: 'tool', toolCallId: block.tool_use_id, content: toContent(block.content), isError }]
  })
  const content = toContent(blocks.filter((block) => block.type !== 'tool_result'))
  return content.length > 0 || results.length === 0 ? [...results, { role: 'user', content }] : results
}

function toAssistant(blocks: WireBlock[], sealer: TextSealer): AssistantMessage {
  const thoughts = blocks.flatMap((block) => toThought(block, sealer))
  const content: ContentPart[] = []
  // A text that was sampled with other blocks in between is returned as several blocks.
  appendParts(content, toContent(blocks.filter((block) => !ASSISTANT_ONLY.has(block.type))))
  return {
    role: 'assistant',
    content,
    toolCalls: blocks.flatMap((block) => (block.type === 'tool_use' ? [toToolCall(block)] : [])),
    reasoning: thoughts.length === 0 ? undefined : thoughts.join(''),
  }
}

const ASSISTANT_ONLY: ReadonlySet<WireBlock['type']> = new Set(['thinking', 'redacted_thinking', 'tool_use'])

/** Prefers the sealed text, which is as sampled; harnesses may omit or trim the plain text. */
function toThought(block: WireBlock, sealer: TextSealer): string[] {
  if (block.type !== 'thinking' && block.type !== 'redacted_thinking') return []
  const sealed = block.type === 'thinking' ? block.signature : block.data
  const shown = block.type === 'thinking' ? block.thinking : undefined
  const thought = (sealed ? sealer.open(sealed) : undefined) ?? shown
  return thought ? [thought] : []
}

function toToolCall(block: { id: string; name: string; input?: unknown }): ToolCall {
  return { id: block.id, name: block.name, arguments: toArguments(block.input) }
}

const UnparsedInput = z.strictObject({ __unparsedToolInput: z.looseObject({ raw: z.string() }) })

function toArguments(input: unknown): string {
  if (typeof input === 'string') return input
  const unparsed = UnparsedInput.safeParse(input)
  return unparsed.success ? unparsed.data.__unparsedToolInput.raw : JSON.stringify(input ?? {})
}

function toBlocks(content: WireContent): readonly WireBlock[] {
  return typeof content === 'string' ? [{ type: 'text', text: content }] : (content ?? [])
}

/** Drops empty texts: a harness may or may not return one that it received. */
function toContent(content: WireContent): ContentPart[] {
  return toBlocks(content).flatMap(toParts)
}

function toParts(block: WireBlock): ContentPart[] {
  switch (block.type) {
    case 'text':
      return block.text === '' ? [] : [{ type: 'text', text: block.text }]
    case 'image': {
      const { type, media_type, data, url } = block.source
      if (type === 'base64' && data != null) {
        return [{ type: 'image', url: `data:${media_type ?? 'image/png'};base64,${data}` }]
      }
      return type === 'url' && url != null ? [{ type: 'image', url }] : [toOther(block)]
    }
    case 'document': {
      // Plain text and blocks become content. Only the vendor's own models read other document formats.
      const { type, data, content } = block.source
      if (type === 'text' && data) return [{ type: 'text', text: data }]
      return type === 'content' && content?.length ? toContent(content) : [toOther(block)]
    }
    case 'search_result': {
      const heading = [block.title, block.source].filter(Boolean).join('\n')
      return toContent([
        ...(heading === '' ? [] : [{ type: 'text' as const, text: `${heading}\n` }]),
        ...(block.content ?? []),
      ])
    }
    case 'tool_reference':
      // `toTools` adds the definition. Without this text the result of a tool search would be empty.
      return [{ type: 'text', text: `The tool ${block.tool_name} is available now.` }]
    case 'tool_addition':
    case 'tool_removal':
      return []
    case 'thinking':
    case 'redacted_thinking':
    case 'tool_use':
    case 'tool_result':
      return [toOther(block)]
    case 'other':
      return [toOther(block.wire)]
  }
}

/** Without `cache_control`, which moves from request to request: equal histories must stay equal. */
function toOther(wire: WireFields): ContentPart {
  const { cache_control: _, ...rest } = wire
  return { type: 'other', wire: rest }
}

/**
 * Returns the tools that the model may call now, in the order in which they became available. A deferred tool becomes
 * available when a tool result or a system message refers to it. The vendor's tool search does not run here, so a request
 * that uses it has all deferred tools from the start.
 */
function toTools(wire: WireRequest): Tool[] {
  const declared = new Map<string, Tool>()
  const offered = new Map<string, Tool>()
  const declare = (tool: z.infer<typeof WireTool> | null | undefined): void => {
    if (tool?.name != null && tool.input_schema != null) declared.set(tool.name, toTool(tool.name, tool))
  }
  const offer = (name: string | null | undefined): void => {
    const tool = declared.get(name ?? '')
    if (tool !== undefined) offered.set(tool.name, tool)
  }
  const isSearchByHarness = !wire.tools?.some((tool) => tool.type?.startsWith('tool_search_tool'))
  for (const tool of wire.tools ?? []) {
    declare(tool)
    if (!(tool.defer_loading && isSearchByHarness)) offer(tool.name)
  }
  for (const block of wire.messages.flatMap(({ content }) => toBlocks(content))) {
    if (block.type === 'tool_result') {
      for (const part of toBlocks(block.content)) if (part.type === 'tool_reference') offer(part.tool_name)
    } else if (block.type === 'tool_addition') {
      declare(block.tool.definition)
      offer(block.tool.definition?.name ?? block.tool.name)
    } else if (block.type === 'tool_removal') {
      offered.delete(block.tool.name ?? '')
    }
  }
  if (wire.tool_choice?.type === 'tool') offer(wire.tool_choice.name)
  return [...offered.values()]
}

function toTool(name: string, { description, input_schema, strict }: z.infer<typeof WireTool>): Tool {
  return { name, description: description ?? undefined, parameters: input_schema, strict: strict ?? undefined }
}

/** Engines reject a choice without tools, and the choice of an unknown tool. */
function toToolChoice(choice: WireRequest['tool_choice'], tools: readonly Tool[]): ToolChoice | undefined {
  if (choice == null || tools.length === 0) return undefined
  switch (choice.type) {
    case 'auto':
    case 'none':
      return choice.type
    case 'any':
      return 'required'
    case 'tool':
      return tools.some(({ name }) => name === choice.name) ? { name: choice.name } : undefined
  }
}

function toParallel(isDisabled: boolean | null | undefined): boolean | undefined {
  return isDisabled == null ? undefined : !isDisabled
}

function toResponseFormat(format: z.infer<typeof WireFormat> | null | undefined): ResponseFormat | undefined {
  if (format?.type !== 'json_schema') return undefined
  return { type: 'json-schema', name: 'answer', schema: format.schema, strict: true }
}

function toReasoning({ thinking, output_config }: WireRequest): TurnRequest['reasoning'] {
  const effort = output_config?.effort ?? undefined
  if (thinking == null && effort === undefined) return undefined
  return { enabled: thinking?.type !== 'disabled', effort }
}

// --- render response --------------------------------------------------------------------------------------------------

function renderResponse(request: TurnRequest, { response }: Answer, context: RequestContext): unknown {
  const [choice] = response.choices
  const counted = { promptTokens: response.promptIds.length, completionTokens: choice?.ids.length ?? 0 }
  return {
    id: messageId(response, response.promptIds.length),
    type: 'message',
    role: 'assistant',
    model: request.model,
    content: renderContent(request, response, context.sealer),
    ...renderStop(request, {
      finishReason: choice?.finishReason ?? 'cut',
      stopReason: choice?.stopReason,
      hasCalls: choice !== undefined && choice.message.toolCalls.length > 0,
    }),
    usage: renderUsage(response.usage ?? counted),
  }
}

function renderContent(request: TurnRequest, { id, choices }: TurnResponse, sealer: TextSealer): WireFields[] {
  const { content = [], reasoning = '', toolCalls = [] } = choices[0]?.message ?? {}
  const text = textOf({ content })
  const blocks: WireFields[] = []
  if (reasoning) {
    const thinking = isThinkingShown(request) ? reasoning : ''
    blocks.push({ type: 'thinking', thinking, signature: sealer.seal(reasoning) })
  }
  if (text || (!reasoning && toolCalls.length === 0)) blocks.push({ type: 'text', text })
  for (const [index, call] of toolCalls.entries()) {
    const input = toInput(call.arguments)
    blocks.push({ type: 'tool_use', id: callId(id, { ...call, index }), name: call.name, input })
  }
  return blocks
}

/** Claude Code represents a streamed input that is not JSON in this way, and reports the error to the model. */
function toInput(text: string): unknown {
  if (text.trim() === '') return {}
  return parseJsonObject(text) ?? { __unparsedToolInput: { raw: text, len: text.length } }
}

/**
 * Claude Code merges answers with the same id into one message. When the engine sends no id, the length of the prompt
 * distinguishes the turns of a conversation.
 */
function messageId({ id, created }: { id: string; created: number }, promptTokens: number): string {
  return `msg_${id || `${created}_${promptTokens}`}`
}

function isThinkingShown(request: TurnRequest): boolean {
  const thinking = request.wire.body['thinking'] as { display?: unknown } | null | undefined
  return thinking?.display !== 'omitted'
}

interface Ending {
  finishReason: FinishReason
  stopReason: string | number | undefined
  hasCalls: boolean
}

function renderStop(request: TurnRequest, { finishReason, stopReason, hasCalls }: Ending): WireFields {
  switch (finishReason) {
    case 'stop':
    case 'tool-calls':
    case 'other':
      // The finish reason of answers with tool calls differs between engines; harnesses of this API rely on `tool_use`.
      if (hasCalls) return { stop_reason: 'tool_use', stop_sequence: null }
      // Engines also report their own stop strings, which the harness did not set.
      if (typeof stopReason === 'string' && request.sampling.stop?.includes(stopReason)) {
        return { stop_reason: 'stop_sequence', stop_sequence: stopReason }
      }
      return { stop_reason: 'end_turn', stop_sequence: null }
    case 'length':
    case 'abort':
    case 'cut':
      return { stop_reason: 'max_tokens', stop_sequence: null }
    case 'content-filter':
      return { stop_reason: 'refusal', stop_sequence: null }
  }
}

/** Anthropic counts cached tokens apart from `input_tokens`; engines include them. */
function renderUsage({ promptTokens, completionTokens, cachedTokens = 0 }: Usage): WireFields {
  return {
    input_tokens: Math.max(0, promptTokens - cachedTokens),
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  }
}

// --- render stream ----------------------------------------------------------------------------------------------------

function createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer {
  const blocks = new BlockStream({ showThinking: isThinkingShown(request), sealer: context.sealer })
  const counted: Usage = { promptTokens: 0, completionTokens: 0 }
  let reported: Usage | undefined
  let finishReason: FinishReason = 'cut'
  let stopReason: string | number | undefined

  function renderDelta(delta: ChoiceDelta): string {
    counted.completionTokens += delta.ids?.length ?? 0
    stopReason = delta.stopReason ?? stopReason
    let frames = ''
    if (delta.reasoning) frames += blocks.add({ kind: 'thinking', text: delta.reasoning })
    if (delta.text) frames += blocks.add({ kind: 'text', text: delta.text })
    for (const call of delta.toolCalls ?? []) frames += blocks.add({ kind: 'call', call })
    if (delta.finishReason === undefined) return frames
    finishReason = delta.finishReason
    return frames + blocks.end()
  }

  return {
    render(event) {
      switch (event.type) {
        case 'answer-start':
          counted.promptTokens = event.promptTokenIds?.length ?? 0
          blocks.answerId = event.id
          return frame({ type: 'message_start', message: startOf(event, request, counted) })
        case 'choice-delta':
          return event.choice === 0 ? renderDelta(event) : ''
        case 'usage':
          reported = event.usage
          return ''
        case 'answer-end': {
          const rest = blocks.end()
          const delta = renderStop(request, { finishReason, stopReason, hasCalls: blocks.hasCalls })
          // The number of cached tokens is known only now. Clients replace the first counts by these.
          const end = frame({ type: 'message_delta', delta, usage: renderUsage(reported ?? counted) })
          return rest + end + frame({ type: 'message_stop' })
        }
        case 'answer-error':
          return ''
      }
    },
    keepAlive: () => frame({ type: 'ping' }),
  }
}

function startOf(start: AnswerStart, request: TurnRequest, usage: Usage): WireFields {
  return {
    id: messageId(start, usage.promptTokens),
    type: 'message',
    role: 'assistant',
    model: request.model,
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: renderUsage(usage),
  }
}

// --- render error -----------------------------------------------------------------------------------------------------

function renderError(failure: Failure): RenderedError {
  const headers: Record<string, string> = {}
  if (failure.retryAfterSeconds !== undefined) headers['retry-after'] = String(failure.retryAfterSeconds)
  const status = failure.code === 'upstream.overloaded' ? 529 : failure.status
  return { status, headers, body: errorBody(errorType(status), failure) }
}

/** Claude Code repeats the stream after `overloaded_error`; after other errors it repeats the request without stream. */
function renderStreamError(failure: Failure): string {
  const type = failureClasses[failure.code].retryable ? 'overloaded_error' : errorType(failure.status)
  return frame(errorBody(type, failure))
}

function errorBody(type: string, failure: Failure): { type: 'error' } & WireFields {
  const message = failure.code === 'request.context-overflow' ? overflowMessage(failure.message) : failure.message
  return { type: 'error', error: { type, message } }
}

function errorType(status: number): string {
  const type = ERROR_TYPES[status]
  if (type !== undefined) return type
  return status < 500 ? 'invalid_request_error' : 'api_error'
}

const ERROR_TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error',
  529: 'overloaded_error',
}

/** The vendor's message, which makes harnesses compact the conversation. */
function overflowMessage(message: string): string {
  const tokens = Number(findNumber(message, PROMPT_SIZES))
  const maximum = Number(findNumber(message, CONTEXT_SIZES))
  if (tokens > maximum) return `prompt is too long: ${tokens} tokens > ${maximum} maximum`
  return /prompt is too long/i.test(message) ? message : `prompt is too long: ${message}`
}

function findNumber(message: string, wordings: readonly RegExp[]): string | undefined {
  return wordings.map((wording) => wording.exec(message)?.[1]).find((found) => found !== undefined)
}

/** Messages of vLLM, SGLang and llama.cpp. */
const PROMPT_SIZES = [
  /prompt contains (?:at least )?(\d+)/i,
  /(?:prompt|input|request) \((?:length )?(\d+)/i,
  /input length \((\d+)/i,
  /(\d+) (?:tokens )?(?:in|from) the (?:input )?messages/i,
  /(?:has|passed) (\d+) input tokens/i,
  /prompt is too long: (\d+) tokens/i,
]
const CONTEXT_SIZES = [
  /maximum (?:context|model) length (?:is |of )?\(?(\d+)/i,
  /context (?:length|size) \((\d+)/i,
  /tokens > (\d+) maximum/i,
]

function renderModel(model: string, created: number): WireFields {
  return { type: 'model', id: model, display_name: model, created_at: new Date(created * 1000).toISOString() }
}

// --- the dialect ------------------------------------------------------------------------------------------------------

export const anthropicMessages: Dialect = {
  id: 'anthropic-messages',
  routes: [
    { kind: 'generate', method: 'POST', path: '/v1/messages' },
    { kind: 'count-tokens', method: 'POST', path: '/v1/messages/count_tokens' },
    { kind: 'list-models', method: 'GET', path: '/v1/models', header: 'anthropic-version' },
    { kind: 'get-model', method: 'GET', path: '/v1/models/*', header: 'anthropic-version' },
  ],
  recognises: (path, headers) => headers['anthropic-version'] !== undefined || path.startsWith('/v1/messages'),
  parseRequest,
  renderResponse,
  createStreamRenderer,
  streamType: () => 'text/event-stream; charset=utf-8',
  renderStreamError,
  renderError,
  renderTokenCount: (tokens) => ({ input_tokens: tokens }),
  renderModels: (models, created) => ({
    data: models.map((model) => renderModel(model, created)),
    has_more: false,
    first_id: models[0] ?? null,
    last_id: models.at(-1) ?? null,
  }),
  renderModel,
}
