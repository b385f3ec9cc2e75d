import * as z from 'zod'
import { toJsonBytes } from '../../lib/json/json-bytes.ts'
import { isRecord } from '../../lib/json/json-text.ts'
import { listOf } from '../../lib/json/list-of.ts'
import { formatSse } from '../../lib/net/sse.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import type { ContentPart, Message, Tool, ToolChoice } from '../../model/message.ts'
import type { DeltaEvent, WireFields } from '../wire-event.ts'
import type { FinishReason, ResponseFormat, TurnRequest } from '../../model/turn.ts'
import { RunFrames, type ShownFields } from './openai-chat-frames.ts'
import type { Answer, Dialect, JsonBody, RequestContext, StreamRenderer } from './dialect.ts'
import { acceptsComments, malformed, openaiModels, renderError, SSE_COMMENT } from './wire/openai-api.ts'

// --- wire schemas -----------------------------------------------------------------------------------------------------

const WirePart = z.looseObject({
  type: z.string(),
  text: z.string().optional(),
  image_url: z.looseObject({ url: z.string(), detail: z.string().nullish() }).optional(),
})

const WireContent = z.union([z.string(), listOf(WirePart)]).nullish()

const WireToolCall = z.looseObject({
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string(), arguments: z.string().nullish() }),
})

const WireMessage = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('system'), content: WireContent }),
  z.looseObject({ role: z.literal('developer'), content: WireContent }),
  z.looseObject({ role: z.literal('user'), content: WireContent }),
  z.looseObject({
    role: z.literal('assistant'),
    content: WireContent,
    reasoning_content: z.string().nullish(),
    reasoning: z.string().nullish(),
    tool_calls: listOf(WireToolCall).nullish(),
  }),
  z.looseObject({ role: z.literal('tool'), content: WireContent, tool_call_id: z.string().nullish() }),
])

const WireTool = z.looseObject({
  type: z.string(),
  function: z
    .looseObject({
      name: z.string(),
      description: z.string().nullish(),
      parameters: z.unknown().optional(),
      strict: z.unknown().optional(),
    })
    .optional(),
})

const WireTools = listOf(WireTool)

const WireRequest = z.looseObject({
  model: z.string(),
  messages: listOf(WireMessage, { min: 1 }),
  tools: WireTools.nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: z.int().nullish(),
  min_p: z.number().nullish(),
  seed: z.int().nullish(),
  n: z.int().min(1).max(128).nullish(),
  max_tokens: z.int().min(0).nullish(),
  max_completion_tokens: z.int().min(0).nullish(),
  stop: z.union([z.string(), listOf(z.string())]).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(-1).nullish(),
})

/** All fields except the long ones, which are parsed part by part. */
const WireSettings = WireRequest.omit({ messages: true, tools: true })

// --- parse request ----------------------------------------------------------------------------------------------------

function parseRequest(body: JsonBody, { parsedParts }: RequestContext): TurnRequest {
  if (!isRecord(body.value)) throw new RolloutError('request.malformed', 'The request body must be a JSON object.')
  const { wire, messages, tools } = readParts(body.value, parsedParts ?? new WeakMap()) ?? readAll(body.value)
  return {
    dialect: 'openai-chat',
    model: wire.model,
    messages,
    tools,
    toolChoice: toToolChoice(wire['tool_choice']),
    responseFormat: toResponseFormat(wire['response_format']),
    reasoning: toReasoning(wire['reasoning_effort']),
    sampling: {
      temperature: wire.temperature ?? undefined,
      topP: wire.top_p ?? undefined,
      topK: wire.top_k ?? undefined,
      minP: wire.min_p ?? undefined,
      seed: wire.seed ?? undefined,
      maxTokens: wire.max_completion_tokens ?? wire.max_tokens ?? undefined,
      stop: typeof wire.stop === 'string' ? [wire.stop] : (wire.stop ?? undefined),
      n: wire.n ?? 1,
    },
    stream: wire.stream ?? false,
    streamUsage: wire.stream_options?.include_usage ?? false,
    logprobs: wire.logprobs ?? false,
    wire: { api: 'openai-chat', text: body.text, body: body.value },
  }
}

function toReasoning(effort: unknown): TurnRequest['reasoning'] {
  return typeof effort === 'string' ? { enabled: effort !== 'none', effort } : undefined
}

interface ReadRequest {
  wire: z.infer<typeof WireSettings>
  messages: Message[]
  tools: Tool[]
}

type ParsedParts = NonNullable<RequestContext['parsedParts']>

function readAll(value: object): ReadRequest {
  const parsed = WireRequest.safeParse(value)
  if (!parsed.success) throw malformed(parsed.error)
  const wire = parsed.data
  return { wire, messages: wire.messages.map(toMessage), tools: toTools(wire.tools ?? []) }
}

/** As `readAll`, without parsing messages and tools of earlier requests again. Undefined when the request is invalid. */
function readParts(value: object, parsedParts: ParsedParts): ReadRequest | undefined {
  const { messages: wireMessages, tools: wireTools, ...settings } = value as Record<string, unknown>
  const wire = WireSettings.safeParse(settings)
  if (!wire.success || !Array.isArray(wireMessages) || wireMessages.length === 0) return undefined
  const messages: Message[] = []
  for (const part of wireMessages as readonly unknown[]) {
    const message = parsePart(part, parsedParts, WireMessage, toMessage)
    if (message === undefined) return undefined
    messages.push(message)
  }
  const tools = wireTools == null ? [] : parsePart(wireTools, parsedParts, WireTools, toTools)
  return tools && { wire: wire.data, messages, tools }
}

function parsePart<Wire, Read>(
  part: unknown,
  parsedParts: ParsedParts,
  schema: z.ZodType<Wire>,
  read: (wire: Wire) => Read,
): Read | undefined {
  if (typeof part !== 'object' || part === null) return undefined
  const before = parsedParts.get(part) as Read | undefined
  if (before !== undefined) return before
  const parsed = schema.safeParse(part)
  if (!parsed.success) return undefined
  const fresh = read(parsed.data)
  parsedParts.set(part, fresh)
  return fresh
}

function toMessage(wire: z.infer<typeof WireMessage>): Message {
  const content = toContent(wire.content)
  switch (wire.role) {
    case 'system':
    case 'developer':
    case 'user':
      return { role: wire.role, content }
    case 'tool':
      return { role: 'tool', toolCallId: wire.tool_call_id ?? '', content }
    case 'assistant': {
      // Engines use either name, and a harness returns the name that it received.
      const reasoning = wire.reasoning_content ?? wire.reasoning
      const toolCalls = (wire.tool_calls ?? []).map((call) => ({
        id: call.id ?? '',
        name: call.function.name,
        arguments: call.function.arguments ?? '',
      }))
      return { role: 'assistant', content, toolCalls, reasoning: reasoning ?? undefined }
    }
  }
}

function toContent(content: z.infer<typeof WireContent>): ContentPart[] {
  if (content == null || content === '') return []
  if (typeof content === 'string') return [{ type: 'text', text: content }]
  return content.map((part) => {
    if (part.type === 'text' && part.text !== undefined) return { type: 'text', text: part.text }
    if (part.type === 'image_url' && part.image_url !== undefined) {
      return { type: 'image', url: part.image_url.url, detail: part.image_url.detail ?? undefined }
    }
    return { type: 'other', wire: part }
  })
}

function toTools(tools: z.infer<typeof WireTools>): Tool[] {
  return tools.flatMap(toTool)
}

function toTool(tool: z.infer<typeof WireTool>): Tool[] {
  if (tool.function === undefined) return []
  const { name, description, parameters, strict } = tool.function
  return [{ name, description: description ?? undefined, parameters, strict: strict === true ? true : undefined }]
}

/** Engines validate the choice, so a malformed choice is read leniently. */
function toToolChoice(choice: unknown): ToolChoice | undefined {
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  if (typeof choice !== 'object' || choice === null) return undefined
  const { function: chosen } = choice as { function?: { name?: unknown } | null }
  return { name: typeof chosen?.name === 'string' ? chosen.name : '' }
}

/** Engines validate the format, so a malformed format is read leniently. */
function toResponseFormat(format: unknown): ResponseFormat | undefined {
  if (typeof format !== 'object' || format === null) return undefined
  const { type, json_schema: named } = format as { type?: unknown; json_schema?: WireFields | null }
  if (type === 'text') return { type: 'text' }
  if (type !== 'json_schema') return { type: 'json-object' }
  const name = named?.['name']
  return { type: 'json-schema', name: typeof name === 'string' ? name : 'response', schema: named?.['schema'] }
}

// --- render response --------------------------------------------------------------------------------------------------

function renderResponse(request: TurnRequest, { events }: Answer): unknown {
  const start = events.find((event) => event.type === 'answer-start')
  const usage = events.find((event) => event.type === 'usage')
  const shown = shownFields(request)
  const promptIds = start?.promptTokenBytes ?? (start?.promptTokenIds && Array.from(start.promptTokenIds))
  const deltas = events.filter((event) => event.type === 'choice-delta')
  const body = {
    id: start?.id,
    object: 'chat.completion',
    created: start?.created,
    ...start?.extra,
    model: request.model,
    prompt_token_ids: shown.ids ? promptIds : undefined,
    choices: deltas.map((delta) => renderChoice(delta, shown)),
    usage: usage && (usage.wire ?? renderUsage(usage.usage)),
  }
  const hasUnread = deltas.some((delta) => delta.unread !== undefined)
  return hasUnread && (shown.ids || shown.logprobs) ? toJsonBytes(body) : body
}

function renderChoice(delta: DeltaEvent, shown: ShownFields): WireFields {
  const { delta: _delta, message, ...wire } = delta.wire ?? {}
  return hideFields(
    {
      index: delta.choice,
      message: message ?? messageOf(delta),
      ...wire,
      ...delta.unread,
      finish_reason: finishReasonOf(delta),
    },
    shown,
  )
}

/** For an engine with another wire. */
function messageOf(delta: DeltaEvent): WireFields {
  return {
    role: 'assistant',
    content: delta.text ?? null,
    reasoning_content: delta.reasoning,
    tool_calls: delta.toolCalls?.map(({ index: _, ...call }) => toolCallOf(call)),
  }
}

// --- render stream ----------------------------------------------------------------------------------------------------

function createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer {
  const shown = shownFields(request)
  let head: WireFields = { id: '', object: 'chat.completion.chunk', created: 0, model: request.model }
  let promptTokenIds: number[] | undefined
  const begun = new Set<number>()

  const chunk = (fields: WireFields): string => formatSse(JSON.stringify({ ...head, ...fields }))

  const renderFrame = (event: DeltaEvent): string => {
    const choice = renderDelta(event, shown, !begun.has(event.choice))
    begun.add(event.choice)
    if (choice === undefined) return ''
    const fields = promptTokenIds ? { choices: [choice], prompt_token_ids: promptTokenIds } : { choices: [choice] }
    promptTokenIds = undefined
    return chunk(fields)
  }
  const frames = new RunFrames(shown, renderFrame)

  return {
    render(event) {
      switch (event.type) {
        case 'answer-start':
          head = {
            id: event.id,
            object: 'chat.completion.chunk',
            created: event.created,
            ...event.extra,
            model: request.model,
          }
          if (shown.ids && event.promptTokenIds) promptTokenIds = Array.from(event.promptTokenIds)
          return ''
        case 'choice-delta':
          if (event.run === undefined) return renderFrame(event)
          return promptTokenIds === undefined ? frames.render(event.run) : frames.renderEach(event.run)
        case 'usage':
          return request.streamUsage ? chunk({ choices: [], usage: event.wire ?? renderUsage(event.usage) }) : ''
        case 'answer-end':
          return formatSse('[DONE]')
        case 'answer-error':
          return ''
      }
    },
    // Every client accepts an empty chunk. Before the answer begins its id is unknown, and OpenAI's SDKs use the id of the
    // first chunk for the whole answer, so a comment is sent where the client accepts one.
    keepAlive: () =>
      head['id'] === '' && acceptsComments(context.headers)
        ? SSE_COMMENT
        : chunk({ choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: null }] }),
  }
}

/** Undefined for an event with nothing but ids or log probabilities that the harness did not request. */
function renderDelta(event: DeltaEvent, shown: ShownFields, isFirst: boolean): WireFields | undefined {
  const wire = event.wire ?? {}
  // Clients expect the role in the first chunk.
  const rendered = isFirst ? { role: 'assistant', ...deltaOf(event) } : deltaOf(event)
  const delta = (wire['delta'] as WireFields | undefined) ?? rendered
  const isVisible = Object.keys(delta).length > 0 || event.finishReason !== undefined
  const carriesShown = (shown.ids && event.ids) || (shown.logprobs && wire['logprobs'] != null)
  if (!isVisible && !carriesShown) return undefined
  return hideFields({ index: event.choice, ...wire, delta, finish_reason: finishReasonOf(event) }, shown)
}

/** For an engine with another wire. */
function deltaOf(event: DeltaEvent): WireFields {
  return {
    ...(event.text === undefined ? {} : { content: event.text }),
    ...(event.reasoning === undefined ? {} : { reasoning_content: event.reasoning }),
    ...(event.toolCalls === undefined
      ? {}
      : { tool_calls: event.toolCalls.map(({ index, ...call }) => ({ index, ...toolCallOf(call) })) }),
  }
}

function toolCallOf(call: { id?: string; name?: string; arguments?: string }): WireFields {
  return {
    ...(call.id === undefined ? {} : { id: call.id, type: 'function' }),
    function: { name: call.name, arguments: call.arguments },
  }
}

/**
 * The gateway requests ids and log probabilities for capture. A harness receives them only if it requested them too:
 * otherwise megabytes would go into the sandbox, and the agent would see more of the policy than in a deployment.
 */
function shownFields(request: TurnRequest): ShownFields {
  return { ids: request.wire.body['return_token_ids'] === true, logprobs: request.logprobs }
}

function hideFields(choice: WireFields, shown: ShownFields): WireFields {
  const { token_ids, logprobs, ...rest } = choice
  return {
    ...rest,
    logprobs: shown.logprobs ? (logprobs ?? null) : null,
    token_ids: shown.ids ? token_ids : undefined,
  }
}

function renderUsage(usage: { promptTokens: number; completionTokens: number }): WireFields {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
  }
}

function finishReasonOf(delta: DeltaEvent): string | null {
  const onWire = delta.wire?.['finish_reason']
  if (typeof onWire === 'string') return onWire
  return delta.finishReason === undefined ? null : FINISH_REASONS[delta.finishReason]
}

const FINISH_REASONS: Readonly<Record<FinishReason, string>> = {
  stop: 'stop',
  length: 'length',
  'tool-calls': 'tool_calls',
  'content-filter': 'content_filter',
  abort: 'stop',
  cut: 'length',
  other: 'stop',
}

/**
 * Qwen Code and OpenCode retry a call only after a broken connection. Clients on OpenAI's SDKs get the error itself; pi
 * retries after this wording. Without `[DONE]`, other readers do not take the answer for complete.
 */
function renderStreamError(failure: Failure, headers: RequestContext['headers'] = {}): string | undefined {
  if (!acceptsComments(headers)) return undefined
  const { retryable } = failureClasses[failure.code]
  const message = retryable ? `server error: ${failure.message}` : failure.message
  return formatSse(JSON.stringify(renderError({ ...failure, message }).body))
}

// --- the dialect ------------------------------------------------------------------------------------------------------

export const openaiChat: Dialect = {
  id: 'openai-chat',
  routes: [
    { kind: 'generate', method: 'POST', path: '/v1/chat/completions' },
    { kind: 'list-models', method: 'GET', path: '/v1/models' },
    { kind: 'get-model', method: 'GET', path: '/v1/models/*' },
  ],
  recognises: (path) => path.startsWith('/v1/chat'),
  parseRequest,
  renderResponse,
  createStreamRenderer,
  renderStreamError,
  renderError: (failure) => renderError(failure),
  streamType: () => 'text/event-stream; charset=utf-8',
  renderTokenCount: (tokens) => ({ input_tokens: tokens }),
  ...openaiModels,
}
