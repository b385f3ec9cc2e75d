import * as z from 'zod'
import { isRecord } from '../../lib/json/json-text.ts'
import { listOf } from '../../lib/json/list-of.ts'
import { formatSse } from '../../lib/net/sse.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import type { ContentPart, Message, ToolChoice } from '../../model/message.ts'
import type { WireFields } from '../wire-event.ts'
import type { ResponseFormat, TurnRequest } from '../../model/turn.ts'
import type { Answer, Dialect, JsonBody, RequestContext, StreamRenderer } from './dialect.ts'
import { readInput, WireInput } from './openai-responses-input.ts'
import {
  answerOfItem,
  ResponseWriter,
  toAnswerId,
  toItemId,
  toResponseId,
  type AnswerShape,
} from './openai-responses-stream.ts'
import {
  createCallWriter,
  createToolTable,
  isStreamed,
  readCall,
  WireTool,
  type CallKind,
  type ToolTable,
} from './openai-responses-tools.ts'
import { acceptsComments, malformed, openaiModels, renderError } from './wire/openai-api.ts'

// --- wire schemas -----------------------------------------------------------------------------------------------------

const WireTextFormat = z.looseObject({
  type: z.string(),
  name: z.string().nullish(),
  schema: z.unknown().optional(),
  strict: z.boolean().nullish(),
})

const WireToolChoice = z.union([
  z.enum(['auto', 'none', 'required']),
  z.looseObject({
    type: z.string(),
    name: z.string().nullish(),
    namespace: z.string().nullish(),
    mode: z.string().nullish(),
    tools: z
      .array(z.looseObject({ type: z.string().nullish(), name: z.string().nullish(), namespace: z.string().nullish() }))
      .nullish(),
  }),
])

const WireRequest = z.looseObject({
  model: z.string().nullish(),
  input: WireInput.nullish(),
  instructions: z.string().nullish(),
  previous_response_id: z.string().nullish(),
  conversation: z.unknown().optional(),
  prompt: z.unknown().optional(),
  background: z.boolean().nullish(),
  tool_choice: WireToolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z.looseObject({ format: WireTextFormat.nullish() }).nullish(),
  reasoning: z.looseObject({ effort: z.string().nullish(), summary: z.string().nullish() }).nullish(),
  include: listOf(z.string()).nullish(),
  stream: z.boolean().nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_logprobs: z.int().min(0).nullish(),
  max_output_tokens: z.int().min(0).nullish(),
})
type WireRequest = z.infer<typeof WireRequest>

// --- parse request ----------------------------------------------------------------------------------------------------

function parseRequest(body: JsonBody, context: RequestContext): TurnRequest {
  const wire = readWire(body.value)
  assertSupported(wire, context)
  const table = toolTableOf(body.value as WireFields)
  const messages = readInput(wire.input ?? [], historyOf(wire, context), {
    readCall: (item) => readCall(item, table),
    describeTools: (tools) => describeTools(tools, table),
    open: (sealed) => context.sealer.open(sealed),
    answerOf: answerOfItem,
    recall: (answerId) => context.recall(answerId),
  })
  if (messages.length === 0) throw new RolloutError('request.malformed', 'The input is empty.', { param: 'input' })
  const isCompaction = wantsCompaction(wire, context)
  if (isCompaction) messages.push(COMPACTION_REQUEST)
  const { tools, toolChoice } = chooseTools(wire, table)
  const { effort, format } = settingsOf(wire)
  return {
    dialect: 'openai-responses',
    model: wire.model ?? '',
    messages,
    tools,
    // The tools stay in the prompt, so that its beginning does not change; the answer is text.
    toolChoice: isCompaction && tools.length > 0 ? 'none' : toolChoice,
    parallelToolCalls: wire.parallel_tool_calls ?? undefined,
    responseFormat: isCompaction ? undefined : format,
    purpose: isCompaction ? 'compaction' : undefined,
    reasoning: effort == null ? undefined : { enabled: effort !== 'none', effort },
    sampling: {
      temperature: wire.temperature ?? undefined,
      topP: wire.top_p ?? undefined,
      maxTokens: wire.max_output_tokens ?? undefined,
      n: 1,
    },
    stream: context.route.path === PATHS.generate && (wire.stream ?? false),
    streamUsage: true,
    logprobs: (wire.include ?? []).includes('message.output_text.logprobs') || (wire.top_logprobs ?? 0) > 0,
    wire: { api: 'openai-responses', text: body.text, body: body.value as WireFields },
  }
}

function readWire(value: unknown): WireRequest {
  if (!isRecord(value)) throw new RolloutError('request.malformed', 'The request body must be a JSON object.')
  const parsed = WireRequest.safeParse(value)
  if (!parsed.success) throw malformed(parsed.error)
  return parsed.data
}

/** Rejects unsupported fields that would change the answer. Other unknown fields are ignored. */
function assertSupported(wire: WireRequest, context: RequestContext): void {
  const reject = (param: string, message: string): never => {
    throw new RolloutError('request.malformed', message, { param })
  }
  if (wire.model == null && context.route.kind === 'generate') reject('model', "Missing required parameter: 'model'.")
  if (wire.background === true) reject('background', 'Background responses are not supported; remove `background`.')
  if (wire.input == null && wire.previous_response_id == null) reject('input', "Missing required parameter: 'input'.")
  if (wire.conversation != null) reject('conversation', 'Conversations are not stored; send the items as `input`.')
  if (wire.prompt != null) reject('prompt', 'Stored prompts are not supported; send their text as `input`.')
}

function historyOf(wire: WireRequest, context: RequestContext): Message[] {
  const { previous_response_id: id, instructions } = wire
  const system: Message[] = instructions ? [{ role: 'system', content: [{ type: 'text', text: instructions }] }] : []
  if (id == null) return system
  const recalled = context.recall(toAnswerId(id))
  if (recalled === undefined) {
    throw new RolloutError('request.malformed', `Previous response with id '${id.slice(0, 100)}' not found.`, {
      param: 'previous_response_id',
    })
  }
  // Instructions belong to one request, so new instructions replace those at the beginning of the conversation. A system
  // message there may also come from the input, but no known harness sends both.
  const isReplaced = system.length > 0 && recalled[0]?.role === 'system'
  return [...system, ...recalled.slice(isReplaced ? 1 : 0)]
}

/** Reads the body: rendering the answer needs the tools again, but not the rest of a long input. */
function toolTableOf(body: WireFields): ToolTable {
  const loaded = Array.isArray(body['input']) ? body['input'].flatMap(loadedTools) : []
  return createToolTable(parseTools(body['tools'], ['tools']), loaded)
}

/** Tools in the input: sent with it, or found by the harness's tool search. */
function loadedTools(item: { type?: unknown; tools?: unknown } | null, position: number): WireTool[] {
  if (item?.type !== 'additional_tools' && item?.type !== 'tool_search_output') return []
  return parseTools(item.tools, ['input', position, 'tools'])
}

function parseTools(tools: unknown, path: readonly PropertyKey[]): WireTool[] {
  const parsed = listOf(WireTool).safeParse(tools ?? [])
  if (!parsed.success) throw malformed(parsed.error, path)
  return parsed.data
}

function describeTools(tools: readonly unknown[], table: ToolTable): string {
  const found = createToolTable(parseTools(tools, ['input']))
  const names = found.tools.map(({ name }) => table.find(found.targetOf(name)) ?? name)
  return names.length === 0 ? 'No tools found.' : `Tools that can be called now: ${names.join(', ')}`
}

function chooseTools(wire: WireRequest, table: ToolTable): Pick<TurnRequest, 'tools' | 'toolChoice'> {
  const choice = wire.tool_choice
  if (choice == null || table.tools.length === 0) return { tools: table.tools }
  if (typeof choice === 'string') return { tools: table.tools, toolChoice: choice }
  if (choice.type === 'allowed_tools') {
    const allowed = new Set((choice.tools ?? []).flatMap((tool) => chosenName(tool, table) ?? []))
    const tools = table.tools.filter((tool) => allowed.has(tool.name))
    return tools.length === 0 ? { tools } : { tools, toolChoice: choice.mode === 'required' ? 'required' : 'auto' }
  }
  return { tools: table.tools, toolChoice: toToolChoice(choice, table) }
}

/** Undefined for the choice of a tool that OpenAI runs. */
function toToolChoice(choice: WireChoice, table: ToolTable): ToolChoice | undefined {
  const name = chosenName(choice, table)
  if (name !== undefined) return { name }
  if (choice.type !== 'function' && choice.type !== 'custom') return undefined
  throw new RolloutError('request.malformed', `Tool choice '${choice.name ?? ''}' not found in 'tools' parameter.`, {
    param: 'tool_choice',
  })
}

interface WireChoice {
  type?: string | null
  name?: string | null
  namespace?: string | null
}

function chosenName({ type, name, namespace }: WireChoice, table: ToolTable): string | undefined {
  if (type === 'function' || type === 'custom') {
    if (name == null) return undefined
    return table.find({ kind: type, name, namespace: namespace ?? undefined })
  }
  const kind = type == null ? undefined : UNNAMED_TOOLS.get(type)
  return type == null || kind === undefined ? undefined : table.find({ kind, name: type })
}

/** Tools that occur at most once. Their name is their type. */
const UNNAMED_TOOLS: ReadonlyMap<string, CallKind> = new Map<string, CallKind>([
  ['local_shell', 'local-shell'],
  ['shell', 'shell'],
  ['apply_patch', 'apply-patch'],
  ['tool_search', 'tool-search'],
])

/** Items of the input may change these settings; the last change applies. */
function settingsOf(wire: WireRequest): { effort?: string | null; format?: ResponseFormat } {
  let effort = wire.reasoning?.effort
  let format = wire.text?.format
  for (const item of wire.input ?? []) {
    if (item.type !== 'configuration_update') continue
    effort = item.reasoning?.effort ?? effort
    const changed = WireTextFormat.safeParse(item.text?.format)
    if (changed.success) format = changed.data
  }
  return { effort, format: format == null ? undefined : toResponseFormat(format) }
}

function toResponseFormat(format: z.infer<typeof WireTextFormat>): ResponseFormat | undefined {
  switch (format.type) {
    case 'text':
      return { type: 'text' }
    case 'json_object':
      return { type: 'json-object' }
    case 'json_schema':
      return {
        type: 'json-schema',
        name: format.name ?? 'response',
        schema: format.schema,
        strict: format.strict ?? undefined,
      }
    default:
      return undefined
  }
}

// --- compaction -------------------------------------------------------------------------------------------------------

const PATHS = {
  generate: '/v1/responses',
  countTokens: '/v1/responses/input_tokens',
  compact: '/v1/responses/compact',
}

/**
 * OpenAI compacts a conversation into a form that only its own models read. Here the model writes a summary, which the
 * harness stores sealed and which becomes a user message in later requests.
 */
function wantsCompaction({ input }: { input?: unknown }, context: RequestContext): boolean {
  const last: unknown = Array.isArray(input) ? input.at(-1) : undefined
  return context.route.path === PATHS.compact || (last as { type?: unknown } | undefined)?.type === 'compaction_trigger'
}

const COMPACTION_REQUEST: Message = {
  role: 'user',
  content: [
    {
      type: 'text',
      text:
        'This conversation is about to be cut. Write down what is needed to go on without it: what was asked for and ' +
        'every condition set, what has been done and found, files and commands that matter, what is still open and ' +
        'the next step. Answer with this summary alone and call no tool.',
    },
  ],
}

const SUMMARY_HEADING = 'Summary of the conversation so far:\n\n'

/** User messages are kept unchanged; the summary replaces everything else. */
function renderCompaction(request: TurnRequest, writer: ResponseWriter): WireFields {
  const { id, created_at, output } = writer.response() as { id: string; created_at: number; output: WireFields[] }
  const kept = request.messages.slice(0, -1).filter((message) => message.role === 'user')
  const messages = kept.map((message, i) => ({
    id: toItemId('umsg', toAnswerId(id), i),
    type: 'message',
    status: 'completed',
    role: 'user',
    content: message.content.map(toInputPart),
  }))
  return { id, object: 'response.compaction', created_at, output: [...messages, ...output], usage: writer.usage() }
}

function toInputPart(part: ContentPart): unknown {
  switch (part.type) {
    case 'text':
      return { type: 'input_text', text: part.text }
    case 'image':
      return { type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }
    case 'other':
      return part.wire
  }
}

// --- render response --------------------------------------------------------------------------------------------------

function renderResponse(request: TurnRequest, { events }: Answer, context: RequestContext): unknown {
  const writer = createWriter(request, context)
  for (const event of events) writer.write(event)
  return context.route.path === PATHS.compact ? renderCompaction(request, writer) : writer.response()
}

function createWriter(request: TurnRequest, context: RequestContext): ResponseWriter {
  const { body } = request.wire
  const table = toolTableOf(body)
  const isCompaction = wantsCompaction(body, context)
  const { summary } = (body['reasoning'] ?? {}) as { summary?: unknown }
  const shape: AnswerShape = {
    echo: echoOf(request),
    showsSummary: summary != null && summary !== 'none',
    showsLogprobs: request.logprobs,
    acceptsComments: acceptsComments(context.headers),
    isCompaction,
    seal: (text) => context.sealer.seal(isCompaction ? SUMMARY_HEADING + text : text),
    isStreamed: (name) => isStreamed(name, table),
    createCall: (call, whole) => createCallWriter(call, table, whole),
  }
  return new ResponseWriter(shape)
}

/** A response repeats the fields of its request, with OpenAI's defaults. */
function echoOf({ model, wire: { body } }: TurnRequest): WireFields {
  const reasoning = { effort: null, summary: null, ...(body['reasoning'] as object | null) }
  const text = { format: { type: 'text' }, verbosity: 'medium', ...(body['text'] as object | null) }
  const echo: Record<string, unknown> = { background: false, model, reasoning, text }
  for (const [field, fallback] of Object.entries(ECHOED)) echo[field] = body[field] ?? fallback
  return { ...echo, service_tier: servedTier(body['service_tier']) }
}

const ECHOED: WireFields = {
  instructions: null,
  max_output_tokens: null,
  max_tool_calls: null,
  metadata: {},
  parallel_tool_calls: true,
  previous_response_id: null,
  prompt_cache_key: null,
  prompt_cache_retention: null,
  safety_identifier: null,
  store: true,
  temperature: 1,
  tool_choice: 'auto',
  tools: [],
  top_logprobs: 0,
  top_p: 1,
  truncation: 'disabled',
  user: null,
}

/** The tier that served the request, which is never `auto`. */
function servedTier(requested: unknown): unknown {
  return requested == null || requested === 'auto' ? 'default' : requested
}

// --- render stream ----------------------------------------------------------------------------------------------------

function createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer {
  const writer = createWriter(request, context)
  return { render: (event) => writer.write(event), keepAlive: () => writer.keepAlive() }
}

/**
 * Codex, Qwen Code and OpenCode retry after a broken connection, so the connection breaks unless the client must not retry.
 * Clients on OpenAI's SDKs get the error itself; pi retries after this wording.
 */
function renderStreamError(failure: Failure, headers: RequestContext['headers'] = {}): string | undefined {
  const { retryable } = failureClasses[failure.code]
  const isTransient = retryable || failure.code === 'internal.bug'
  if (isTransient && !acceptsComments(headers)) return undefined
  const shown = isTransient ? { ...failure, message: `server error: ${failure.message}` } : failure
  const { error } = renderResponsesError(shown).body
  const response = {
    id: toResponseId(''),
    object: 'response',
    status: 'failed',
    error: { code: error.code, message: error.message },
    incomplete_details: null,
    output: [],
    usage: null,
  }
  // OpenAI sends both events: its SDKs stop at the first, Codex reads the second.
  return (
    frame('error', { sequence_number: LAST_SEQUENCE_NUMBER - 1, error }) +
    frame('response.failed', { sequence_number: LAST_SEQUENCE_NUMBER, response })
  )
}

/** The number of earlier frames is unknown here; these follow all of them. */
const LAST_SEQUENCE_NUMBER = 2 ** 31 - 1

function frame(type: string, fields: WireFields): string {
  return formatSse(JSON.stringify({ type, ...fields }), type)
}

// --- render error -----------------------------------------------------------------------------------------------------

function renderResponsesError(failure: Failure): ReturnType<typeof renderError> {
  const { code, param, message, status } = failure
  const isLost = code === 'request.malformed' && param === 'previous_response_id' && message.endsWith('not found.')
  // Codex does not retry after a 429 without `retry-after`.
  const retryAfterSeconds = failure.retryAfterSeconds ?? (status === 429 ? 1 : undefined)
  return renderError({ ...failure, retryAfterSeconds }, isLost ? 'previous_response_not_found' : undefined)
}

// --- the dialect ------------------------------------------------------------------------------------------------------

export const openaiResponses: Dialect = {
  id: 'openai-responses',
  routes: [
    { kind: 'generate', method: 'POST', path: PATHS.generate },
    { kind: 'count-tokens', method: 'POST', path: PATHS.countTokens },
    { kind: 'generate', method: 'POST', path: PATHS.compact },
    { kind: 'list-models', method: 'GET', path: '/v1/models' },
    { kind: 'get-model', method: 'GET', path: '/v1/models/*' },
  ],
  recognises: (path) => path.startsWith(PATHS.generate),
  parseRequest,
  renderResponse,
  createStreamRenderer,
  renderStreamError,
  renderError: renderResponsesError,
  streamType: () => 'text/event-stream; charset=utf-8',
  renderTokenCount: (tokens) => ({ object: 'response.input_tokens', input_tokens: tokens }),
  ...openaiModels,
}
