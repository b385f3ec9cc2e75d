import * as z from 'zod'
import { formatPath } from '../../lib/json/first-issue.ts'
import { isRecord } from '../../lib/json/json-text.ts'
import { listOf } from '../../lib/json/list-of.ts'
import { formatSse } from '../../lib/net/sse.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { Tool, ToolCall, ToolChoice } from '../../model/message.ts'
import type { AnswerStart, ChoiceDelta, ToolCallDelta } from '../../model/stream-event.ts'
import type { WireFields } from '../wire-event.ts'
import type { FinishReason, ResponseFormat, TurnRequest, Usage } from '../../model/turn.ts'
import type {
  Answer,
  Dialect,
  JsonBody,
  RenderedError,
  RequestContext,
  Route,
  StreamRenderer,
  TextSealer,
} from './dialect.ts'
import { closeSeal, loose, many, toArgs, toMessages, WireContent } from './google-generate-contents.ts'
import { toJsonSchema } from './google-generate-schema.ts'

// --- wire schemas -----------------------------------------------------------------------------------------------------

const WireFunctionDeclaration = loose({
  name: z.string(),
  description: z.string().nullish(),
  parameters: z.unknown().optional(),
  parametersJsonSchema: z.unknown().optional(),
})
type WireFunctionDeclaration = z.infer<typeof WireFunctionDeclaration>

const WireFunctionCallingConfig = loose({
  mode: z.string().nullish(),
  allowedFunctionNames: many(listOf(z.string()).nullish()).optional(),
})
type WireFunctionCallingConfig = z.infer<typeof WireFunctionCallingConfig>

const WireThinkingConfig = loose({
  includeThoughts: z.boolean().nullish(),
  thinkingBudget: z.int().nullish(),
  thinkingLevel: z.string().nullish(),
})
type WireThinkingConfig = z.infer<typeof WireThinkingConfig>

const WireGenerationConfig = loose({
  temperature: z.number().min(0).nullish(),
  topP: z.number().min(0).max(1).nullish(),
  topK: z.number().nullish(),
  seed: z.int().nullish(),
  candidateCount: z.int().min(1).max(128).nullish(),
  maxOutputTokens: z.int().min(1).nullish(),
  stopSequences: many(listOf(z.string()).nullish()).optional(),
  presencePenalty: z.number().nullish(),
  frequencyPenalty: z.number().nullish(),
  responseLogprobs: z.boolean().nullish(),
  responseMimeType: z.string().nullish(),
  responseSchema: z.unknown().optional(),
  responseJsonSchema: z.unknown().optional(),
  /** The older name of `responseJsonSchema`. */
  _responseJsonSchema: z.unknown().optional(),
  thinkingConfig: WireThinkingConfig.nullish(),
})
type WireGenerationConfig = z.infer<typeof WireGenerationConfig>

const WireRequest = loose({
  contents: many(listOf(WireContent, { min: 1 })),
  systemInstruction: WireContent.nullish(),
  tools: many(
    listOf(loose({ functionDeclarations: many(listOf(WireFunctionDeclaration).nullish()).optional() })).nullish(),
  ).optional(),
  toolConfig: loose({ functionCallingConfig: WireFunctionCallingConfig.nullish() }).nullish(),
  generationConfig: WireGenerationConfig.nullish(),
})

/** Fields of the request that the renderer needs and `TurnRequest` does not have. */
interface GoogleWire {
  api: string
  text: string
  body: Readonly<Record<string, unknown>>
  /** Without `alt=sse` a stream is one JSON array that grows. */
  framing: 'sse' | 'array'
  includeThoughts: boolean
}

function wireOf(request: TurnRequest): Partial<GoogleWire> {
  return request.wire
}

// --- parse request ----------------------------------------------------------------------------------------------------

function parseRequest(body: JsonBody, context: RequestContext): TurnRequest {
  if (!isRecord(body.value)) throw new RolloutError('request.malformed', 'The request body must be a JSON object.')
  // countTokens accepts the contents alone or a complete request.
  const inner = body.value['generateContentRequest'] ?? body.value['generate_content_request']
  const parsed = WireRequest.safeParse(context.route.kind === 'count-tokens' ? (inner ?? body.value) : body.value)
  if (!parsed.success) throw malformed(parsed.error)
  const { contents, systemInstruction, tools, toolConfig } = parsed.data
  const config = parsed.data.generationConfig ?? {}
  const functions = (tools ?? []).flatMap((tool) => (tool.functionDeclarations ?? []).map(toTool))
  const instruction = systemInstruction == null ? [] : [{ ...systemInstruction, role: 'system' as const }]
  const wire: GoogleWire = {
    api: 'google-generate',
    text: body.text,
    body: body.value,
    framing: (context.query.get('alt') ?? context.query.get('$alt')) === 'sse' ? 'sse' : 'array',
    includeThoughts: config.thinkingConfig?.includeThoughts ?? false,
  }
  return {
    dialect: 'google-generate',
    model: modelOf(context),
    messages: toMessages([...instruction, ...contents], context.sealer),
    tools: functions,
    toolChoice: functions.length === 0 ? undefined : toToolChoice(toolConfig?.functionCallingConfig),
    responseFormat: toResponseFormat(config),
    reasoning: toReasoning(config.thinkingConfig),
    sampling: {
      temperature: config.temperature ?? undefined,
      topP: config.topP ?? undefined,
      topK: config.topK == null ? undefined : Math.trunc(config.topK),
      seed: config.seed ?? undefined,
      maxTokens: config.maxOutputTokens ?? undefined,
      stop: config.stopSequences ?? undefined,
      presencePenalty: config.presencePenalty ?? undefined,
      frequencyPenalty: config.frequencyPenalty ?? undefined,
      n: config.candidateCount ?? 1,
    },
    stream: context.route.path.endsWith(':streamGenerateContent'),
    streamUsage: true,
    logprobs: config.responseLogprobs ?? false,
    wire,
  }
}

function malformed(error: z.ZodError): RolloutError {
  const { path = [], message = 'not valid' } = error.issues[0] ?? {}
  const param = formatPath(path)
  return new RolloutError('request.malformed', `Invalid value${param && ` at '${param}'`}: ${message}`, {
    param: param || undefined,
  })
}

/**
 * Clients write a model name of two parts (`org/model`) into the path without escaping: two segments in the Gemini API,
 * publisher and model in Vertex.
 */
function modelOf({ route, wildcards }: RequestContext): string {
  if (route.path.includes('/models/*/*')) return wildcards.slice(-2).join('/')
  if (!route.path.includes('/publishers/*/')) return wildcards.at(-1) ?? ''
  return wildcards.at(-2) === 'google' ? (wildcards.at(-1) ?? '') : wildcards.slice(-2).join('/')
}

function toTool({ name, description, parameters, parametersJsonSchema }: WireFunctionDeclaration): Tool {
  const schema = parametersJsonSchema ?? parameters
  return { name, description: description ?? undefined, parameters: schema == null ? undefined : toJsonSchema(schema) }
}

function toToolChoice(config: WireFunctionCallingConfig | null | undefined): ToolChoice | undefined {
  const [first, ...others] = config?.allowedFunctionNames ?? []
  switch (config?.mode?.toUpperCase() ?? 'MODE_UNSPECIFIED') {
    case 'NONE':
      return 'none'
    case 'ANY':
      return first !== undefined && others.length === 0 ? { name: first } : 'required'
    case 'AUTO':
    case 'VALIDATED':
      // The model may also answer with text. The engine enforces the schemas of calls.
      return 'auto'
    default:
      return undefined
  }
}

function toResponseFormat(config: WireGenerationConfig): ResponseFormat | undefined {
  if (config.responseMimeType !== 'application/json') return undefined
  const schema = config.responseJsonSchema ?? config._responseJsonSchema ?? config.responseSchema
  if (schema == null) return { type: 'json-object' }
  return { type: 'json-schema', name: 'response', schema: toJsonSchema(schema) }
}

/** `includeThoughts` enables reasoning: Google's own models reason unless the budget is 0. */
function toReasoning(config: WireThinkingConfig | null | undefined): TurnRequest['reasoning'] {
  if (config == null) return undefined
  if (config.thinkingBudget === 0) return { enabled: false }
  const level = config.thinkingLevel?.toLowerCase()
  if (level != null && level !== 'thinking_level_unspecified') return { enabled: true, effort: level }
  return config.includeThoughts === true || config.thinkingBudget != null ? { enabled: true } : undefined
}

// --- render response --------------------------------------------------------------------------------------------------

function renderResponse(request: TurnRequest, { response }: Answer, context: RequestContext): unknown {
  const candidates = response.choices.map((choice) => {
    const { message, finishReason, ids, logprobs } = choice
    const renderer = new CandidateRenderer(choice.index, response.id, request, context.sealer)
    const parts = renderer.add({
      type: 'choice-delta',
      choice: choice.index,
      reasoning: message.reasoning,
      text: message.content.map((part) => (part.type === 'text' ? part.text : '')).join(''),
      toolCalls: message.toolCalls.map((call, index) => ({ index, ...call })),
      finishReason,
      ids,
      logprobs,
    })
    return renderer.finish(parts)
  })
  const sampled = response.choices.reduce((sum, choice) => sum + choice.ids.length, 0)
  const usage = response.usage ?? { promptTokens: response.promptIds.length, completionTokens: sampled }
  return {
    candidates,
    usageMetadata: renderUsage(usage),
    modelVersion: request.model,
    responseId: response.id,
  }
}

// --- render stream ----------------------------------------------------------------------------------------------------

function createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer {
  const { framing } = wireOf(request)
  const candidates = new Map<number, CandidateRenderer>()
  let start: AnswerStart | undefined
  let promptTokens: number | undefined
  let usage: Usage | undefined
  let sampled = 0
  let isFirst = true

  /** Every chunk contains the counts so far; clients keep the last counts. */
  const chunk = (rendered: readonly WireFields[]): string => {
    const counted = usage ?? (promptTokens === undefined ? undefined : { promptTokens, completionTokens: sampled })
    return frame({
      candidates: rendered,
      usageMetadata: counted && renderUsage(counted),
      modelVersion: request.model,
      responseId: start?.id ?? '',
    })
  }

  const frame = (value: WireFields): string => {
    const json = JSON.stringify(value)
    if (framing !== 'array') return formatSse(json)
    const separator = isFirst ? '[' : '\n,\n'
    isFirst = false
    return separator + json
  }

  const candidateOf = (index: number): CandidateRenderer => {
    let candidate = candidates.get(index)
    if (candidate === undefined) {
      candidate = new CandidateRenderer(index, start?.id ?? '', request, context.sealer)
      candidates.set(index, candidate)
    }
    return candidate
  }

  const close = (): string => {
    if (framing !== 'array') return ''
    return isFirst ? '[]' : '\n]'
  }

  return {
    render(event) {
      switch (event.type) {
        case 'answer-start':
          start = event
          promptTokens = event.promptTokenIds?.length
          return ''
        case 'choice-delta': {
          sampled += event.ids?.length ?? 0
          const candidate = candidateOf(event.choice)
          const parts = candidate.add(event)
          return parts.length === 0 ? '' : chunk([candidate.show(parts)])
        }
        case 'usage':
          usage = event.usage
          return ''
        // Finish reasons wait for the counts: most clients expect both in the last chunk, and no part may follow them.
        case 'answer-end': {
          promptTokens ??= event.promptTokenIds?.length
          const ordered = [...candidates.values()].toSorted((a, b) => a.index - b.index)
          const last = chunk(ordered.map((candidate) => candidate.finish([])))
          return last + close()
        }
        case 'answer-error':
          // renderStreamError renders the error of a stream of server-sent events.
          if (framing !== 'array') return ''
          return frame(renderError(event.failure).body as WireFields) + close()
      }
    },
    // The protocol allows a comment, but Gemini CLI loses the whole answer after one.
    keepAlive: () => (framing === 'array' ? '\n' : formatSse(JSON.stringify(idleChunk(request, context)))),
  }
}

/**
 * A chunk without content. Google's chat helper drops the whole answer after a chunk without a part, so the chunk contains a
 * thought without text, which other clients ignore. Gemini CLI gets no part: it repeats a request whose answer has thoughts
 * but no text.
 */
function idleChunk(request: TurnRequest, { headers }: RequestContext): WireFields {
  const isGeminiCli = String(headers['user-agent']).startsWith('GeminiCLI')
  const candidates = [{ content: { parts: [{ thought: true }], role: 'model' }, index: 0 }]
  return isGeminiCli ? { modelVersion: request.model } : { candidates, modelVersion: request.model }
}

class CandidateRenderer {
  readonly index: number
  readonly #responseId: string
  readonly #request: TurnRequest
  readonly #sealer: TextSealer
  readonly #calls = new Map<number, ToolCall>()
  readonly #callIds = new Set<string>()
  #reasoning = ''
  /** Characters of the reasoning that a sent signature contains. */
  #sealedChars = 0
  #finishReason: FinishReason = 'other'
  /** Tokens since the last chunk; empty unless the harness requested log probabilities. */
  #tokens: WireFields[] = []
  #logprobSum = 0
  #logprobCount = 0

  constructor(index: number, responseId: string, request: TurnRequest, sealer: TextSealer) {
    this.index = index
    this.#responseId = responseId
    this.#request = request
    this.#sealer = sealer
  }

  /**
   * Returns the parts that can be sent now. Calls are sent complete at the end: Gemini CLI executes the calls of a stream
   * that breaks, and then repeats the request.
   */
  add(delta: ChoiceDelta): WireFields[] {
    const parts: WireFields[] = []
    const { includeThoughts } = wireOf(this.#request)
    if (delta.reasoning) {
      this.#reasoning += delta.reasoning
      if (includeThoughts) parts.push({ text: delta.reasoning, thought: true })
    }
    if (delta.text) parts.push({ text: delta.text, ...this.#sign() })
    for (const piece of delta.toolCalls ?? []) this.#addPiece(piece)
    if (delta.finishReason !== undefined) this.#finishReason = delta.finishReason
    if (this.#request.logprobs) this.#addTokens(delta)
    return parts
  }

  show(parts: readonly WireFields[]): WireFields {
    const tokens = this.#tokens
    this.#tokens = []
    return {
      content: { parts, role: 'model' },
      index: this.index,
      logprobsResult: tokens.length === 0 ? undefined : { chosenCandidates: tokens },
    }
  }

  /** Renders the last chunk of the candidate: its calls and its finish reason. */
  finish(parts: readonly WireFields[]): WireFields {
    const calls = [...this.#calls].toSorted(([a], [b]) => a - b)
    const last = [...parts, ...calls.map(([, call], position) => this.#renderCall(call, position))]
    if (this.#reasoning.length > this.#sealedChars) last.push({ text: '', ...this.#sign() })
    // A chunk needs a part, see idleChunk().
    if (last.length === 0) last.push({ text: '' })
    return {
      ...this.show(last),
      finishReason: FINISH_REASONS[this.#finishReason],
      avgLogprobs: this.#logprobCount === 0 ? undefined : this.#logprobSum / this.#logprobCount,
    }
  }

  /**
   * Signs the first text, because a client that joins texts keeps the signature of the first. Signs again only after more
   * reasoning.
   */
  #sign(): WireFields {
    if (this.#reasoning.length <= this.#sealedChars) return {}
    this.#sealedChars = this.#reasoning.length
    return { thoughtSignature: closeSeal({ reasoning: this.#reasoning }, this.#sealer) }
  }

  #addPiece({ index, id, name, arguments: text }: ToolCallDelta): void {
    let call = this.#calls.get(index)
    if (call === undefined) this.#calls.set(index, (call = { id: '', name: '', arguments: '' }))
    if (id !== undefined) call.id = id
    call.name += name ?? ''
    call.arguments += text ?? ''
  }

  #renderCall(call: ToolCall, position: number): WireFields {
    const isDuplicate = call.id === '' || this.#callIds.has(call.id)
    const id = isDuplicate ? `${this.#responseId}-${this.index}-${position}` : call.id
    this.#callIds.add(id)
    const reasoning = position === 0 ? this.#reasoning || undefined : undefined
    this.#sealedChars = this.#reasoning.length
    return {
      functionCall: { id, name: call.name, args: toArgs(call.arguments) },
      thoughtSignature: closeSeal({ callId: id, reasoning }, this.#sealer),
    }
  }

  #addTokens({ ids, logprobs }: ChoiceDelta): void {
    for (const [i, tokenId] of (ids ?? []).entries()) {
      const logProbability = logprobs?.[i]
      const isKnown = logProbability !== undefined && !Number.isNaN(logProbability)
      this.#tokens.push({ tokenId, logProbability: isKnown ? logProbability : undefined })
      if (!isKnown) continue
      this.#logprobSum += logProbability
      this.#logprobCount += 1
    }
  }
}

/** Google includes cached tokens in the prompt, as engines do. */
function renderUsage(usage: Usage): WireFields {
  return {
    promptTokenCount: usage.promptTokens,
    candidatesTokenCount: usage.completionTokens,
    totalTokenCount: usage.promptTokens + usage.completionTokens,
    cachedContentTokenCount: usage.cachedTokens,
  }
}

const FINISH_REASONS: Readonly<Record<FinishReason, string>> = {
  stop: 'STOP',
  length: 'MAX_TOKENS',
  'tool-calls': 'STOP',
  'content-filter': 'SAFETY',
  abort: 'OTHER',
  cut: 'OTHER',
  other: 'OTHER',
}

// --- render error -----------------------------------------------------------------------------------------------------

function renderError(failure: Failure): RenderedError {
  const { status, retryAfterSeconds } = failure
  const isOverflow = failure.code === 'request.context-overflow'
  const details = [...errorDetails(failure)]
  return {
    status,
    headers: retryAfterSeconds === undefined ? {} : { 'retry-after': String(retryAfterSeconds) },
    body: {
      error: {
        code: status,
        message: isOverflow ? overflowMessage(failure.message) : failure.message,
        status: STATUS_NAMES[status] ?? (status < 500 ? 'INVALID_ARGUMENT' : 'INTERNAL'),
        details: details.length === 0 ? undefined : details,
      },
    },
  }
}

/**
 * A broken connection ends Gemini CLI, so the stream ends with an error chunk. That is enough for Google's newer SDKs and for
 * clients that require a finish reason. Gemini CLI 0.61 has an older SDK that ignores error chunks and accepts an incomplete
 * answer after a tool result. But it throws on bytes that are no event, and retries; other clients ignore these bytes.
 */
function renderStreamError(failure: Failure): string {
  const json = JSON.stringify(renderError(failure).body)
  return `${json}\n\n${formatSse(json)}`
}

function* errorDetails({ code, message, param, retryAfterSeconds }: Failure): Generator<WireFields> {
  if (retryAfterSeconds !== undefined) {
    // Gemini CLI reads this instead of the header, and treats a longer delay as an exhausted quota.
    yield { '@type': RPC + 'RetryInfo', retryDelay: `${Math.min(retryAfterSeconds, 300)}s` }
  }
  if (param !== undefined) {
    yield { '@type': RPC + 'BadRequest', fieldViolations: [{ field: param, description: message }] }
  }
  if (code === 'request.context-overflow') yield { '@type': RPC + 'DebugInfo', detail: message }
}

const RPC = 'type.googleapis.com/google.rpc.'

/** Google's message, which makes clients shorten the history. Messages of engines differ. */
function overflowMessage(whole: string): string {
  const message = whole.slice(0, 1000)
  const limit = /max(?:imum|_)\D*(?:length|len)\D*?(\d+)/i.exec(message)?.[1]
  const before = /(?:prompt contains|you passed|request has|input length|prompt \(length)\D{0,12}?(\d+)/i.exec(message)
  const input = before ?? /(\d+) in the messages/i.exec(message)
  const inParentheses = (count: string | undefined) => (count === undefined ? '' : ` (${count})`)
  return `The input token count${inParentheses(input?.[1])} exceeds the maximum number of tokens allowed${inParentheses(limit)}.`
}

const STATUS_NAMES: Readonly<Record<number, string>> = {
  400: 'INVALID_ARGUMENT',
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  409: 'ABORTED',
  429: 'RESOURCE_EXHAUSTED',
  499: 'CANCELLED',
  500: 'INTERNAL',
  501: 'UNIMPLEMENTED',
  502: 'UNAVAILABLE',
  503: 'UNAVAILABLE',
  504: 'DEADLINE_EXCEEDED',
}

function modelCard(model: string): WireFields {
  return {
    name: `models/${model}`,
    displayName: model,
    supportedGenerationMethods: ['generateContent', 'streamGenerateContent', 'countTokens'],
  }
}

// --- the dialect ------------------------------------------------------------------------------------------------------

const MODEL_PATHS: readonly string[] = [
  '/v1beta/models/*',
  '/v1beta/models/*/*',
  '/v1/models/*',
  '/v1/models/*/*',
  '/v1beta1/publishers/*/models/*',
  '/v1/publishers/*/models/*',
  '/v1beta1/projects/*/locations/*/publishers/*/models/*',
  '/v1/projects/*/locations/*/publishers/*/models/*',
]

const GOOGLE_PATHS = /^\/v1beta|^\/v1\/(publishers|projects)\/|^\/v1\/models\/.*:/

function modelRoutes(path: string): Route[] {
  return [
    { kind: 'generate', method: 'POST', path: `${path}:generateContent` },
    { kind: 'generate', method: 'POST', path: `${path}:streamGenerateContent` },
    { kind: 'count-tokens', method: 'POST', path: `${path}:countTokens` },
  ]
}

/** Google generateContent, with the paths of the Gemini API and of Vertex. */
export const googleGenerate: Dialect = {
  id: 'google-generate',
  routes: [
    ...MODEL_PATHS.flatMap(modelRoutes),
    { kind: 'list-models', method: 'GET', path: '/v1beta/models' },
    { kind: 'get-model', method: 'GET', path: '/v1beta/models/*' },
    // OpenAI has the same paths.
    { kind: 'list-models', method: 'GET', path: '/v1/models', header: 'x-goog-api-key' },
    { kind: 'get-model', method: 'GET', path: '/v1/models/*', header: 'x-goog-api-key' },
  ],
  recognises: (path, headers) => headers['x-goog-api-key'] !== undefined || GOOGLE_PATHS.test(path),
  parseRequest,
  renderResponse,
  createStreamRenderer,
  renderStreamError,
  renderError,
  streamType: (request) =>
    wireOf(request).framing === 'array' ? 'application/json; charset=utf-8' : 'text/event-stream; charset=utf-8',
  renderTokenCount: (tokens) => ({ totalTokens: tokens }),
  renderModels: (models) => ({ models: models.map(modelCard) }),
  renderModel: modelCard,
}
