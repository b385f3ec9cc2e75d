import * as z from 'zod'
import { formatSse } from '../../lib/sse.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import type { AssistantMessage, ContentPart, Message, Tool, ToolCall, ToolChoice } from '../../model/message.ts'
import type { AnswerStart, ChoiceDelta, ToolCallDelta, WireFields } from '../../model/stream-event.ts'
import type { FinishReason, ResponseFormat, TurnRequest, Usage } from '../../model/turn.ts'
import type { Answer, Dialect, JsonBody, RenderedError, RequestContext, StreamRenderer, Vault } from './dialect.ts'

// --- wire schemas -----------------------------------------------------------------------------------------------------

const WireSource = z.looseObject({
  type: z.string(),
  media_type: z.string().nullish(),
  data: z.string().nullish(),
  url: z.string().nullish(),
})

/** One without `input_schema` runs at the vendor, or has a schema that only its models know. */
const WireTool = z.looseObject({
  type: z.string().nullish(),
  name: z.string().nullish(),
  description: z.string().nullish(),
  input_schema: z.looseObject({}).nullish(),
  strict: z.boolean().nullish(),
  defer_loading: z.boolean().nullish(),
})

/** Which tool a system message adds or takes away: one by name, or one defined on the spot. */
const WireToolChange = z.looseObject({ name: z.string().nullish(), definition: WireTool.nullish() })

const resultBlocks = [
  z.looseObject({ type: z.literal('text'), text: z.string() }),
  z.looseObject({ type: z.literal('image'), source: WireSource }),
  z.looseObject({ type: z.literal('document'), source: WireSource }),
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
    content: z.union([z.string(), z.array(WireResultBlock)]).nullish(),
    is_error: z.boolean().nullish(),
  }),
  z.looseObject({ type: z.literal('tool_addition'), tool: WireToolChange }),
  z.looseObject({ type: z.literal('tool_removal'), tool: WireToolChange }),
] as const
const WireBlock = z.union([otherThan(messageBlocks), z.discriminatedUnion('type', messageBlocks)])
type WireBlock = z.infer<typeof WireBlock>

const WireContent = z.union([z.string(), z.array(WireBlock)]).nullish()
type WireContent = z.infer<typeof WireContent>

const WireMessage = z.looseObject({ role: z.enum(['user', 'assistant', 'system']), content: WireContent })

const WireToolChoice = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('auto'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('any'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('none'), disable_parallel_tool_use: z.boolean().nullish() }),
  z.looseObject({ type: z.literal('tool'), name: z.string(), disable_parallel_tool_use: z.boolean().nullish() }),
])

const WireFormat = z.looseObject({ type: z.string(), schema: z.unknown() })

const WireRequest = z.looseObject({
  model: z.string(),
  messages: z.array(WireMessage).min(1),
  system: WireContent,
  max_tokens: z.int().min(0).nullish(),
  tools: z.array(WireTool).nullish(),
  tool_choice: WireToolChoice.nullish(),
  thinking: z.looseObject({ type: z.string(), display: z.string().nullish() }).nullish(),
  output_config: z.looseObject({ effort: z.string().nullish(), format: WireFormat.nullish() }).nullish(),
  output_format: WireFormat.nullish(),
  stop_sequences: z.array(z.string()).nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: z.int().nullish(),
  stream: z.boolean().nullish(),
  thread: z.looseObject({ type: z.string() }).nullish(),
})
type WireRequest = z.infer<typeof WireRequest>

/** A block of a type we do not read. One of a known type is not let through, so that its wrong fields are named. */
function otherThan(known: readonly z.ZodObject<{ type: z.ZodLiteral<string> }>[]) {
  const types = new Set(known.map((block) => block.shape.type.value))
  return z
    .looseObject({ type: z.string() })
    .refine((block) => !types.has(block.type))
    .transform((wire) => ({ type: 'other' as const, wire }))
}

// --- parse request ----------------------------------------------------------------------------------------------------

function parseRequest(body: JsonBody, context: RequestContext): TurnRequest {
  if (typeof body.value !== 'object' || body.value === null || Array.isArray(body.value)) {
    throw new RolloutError('request.malformed', 'The request body must be a JSON object.')
  }
  const parsed = WireRequest.safeParse(body.value)
  if (!parsed.success) throw malformed(parsed.error)
  const wire = parsed.data
  if (context.route.kind === 'generate' && wire.max_tokens == null) throw refused('max_tokens', 'Field required')
  if (wire.thread?.type === 'continue') throw refused('thread', 'No conversation is held here; send all messages')
  const tools = toTools(wire)
  return {
    dialect: 'anthropic-messages',
    model: wire.model,
    messages: [...toSystem(wire.system), ...toMessages(wire, context.vault)],
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
    wire: { api: 'anthropic-messages', text: body.text, body: body.value as Readonly<Record<string, unknown>> },
  }
}

/** The first problem, as Anthropic words it: the path with dots, a colon, what is wrong. */
function malformed(error: z.ZodError): RolloutError {
  const { path, message } = deepestIssue(error.issues[0])
  return refused(path.map(String).join('.'), message)
}

function refused(param: string, message: string): RolloutError {
  return new RolloutError('request.malformed', param ? `${param}: ${message}` : message, { param: param || undefined })
}

/** A union reports each of its branches; the branch that got furthest is the one that was meant. */
function deepestIssue(issue: z.core.$ZodIssue | undefined): { path: PropertyKey[]; message: string } {
  if (issue === undefined) return { path: [], message: 'not valid' }
  if (issue.code !== 'invalid_union' || issue.errors.length === 0) return issue
  const inner = issue.errors.flatMap((branch) => branch.slice(0, 1).map(deepestIssue))
  const deepest = inner.toSorted((a, b) => b.path.length - a.path.length)[0]
  if (deepest === undefined || deepest.path.length === 0) return issue
  return { path: [...issue.path, ...deepest.path], message: deepest.message }
}

/** The system prompt is one message, however many blocks it came in. */
function toSystem(system: WireContent): Message[] {
  const messages: { role: 'system'; content: ContentPart[] }[] = []
  for (const part of toContent(system)) {
    const last = messages.at(-1)
    if (last === undefined || isBillingLine(part) || last.content.some(isBillingLine)) {
      messages.push({ role: 'system', content: [part] })
    } else {
      last.content.push(part)
    }
  }
  return messages
}

/**
 * Claude Code opens the system prompt with a block that holds a hash of the conversation's first prompt. It stands
 * alone, so that it can be left out of what engines read without touching the prompt itself.
 */
function isBillingLine(part: ContentPart): boolean {
  return part.type === 'text' && part.text.startsWith('x-anthropic-billing-header:')
}

function toMessages(wire: WireRequest, vault: Vault): Message[] {
  const messages: Message[] = []
  for (const { role, content } of wire.messages) {
    switch (role) {
      case 'user':
        messages.push(...toUserMessages(content))
        break
      case 'assistant': {
        // The API takes neighbouring messages of one role for one turn.
        const message = toAssistant(content, vault)
        const last = messages.at(-1)
        if (last?.role === 'assistant') messages.splice(-1, 1, joinTurns(last, message))
        else messages.push(message)
        break
      }
      case 'system': {
        const parts = toContent(content)
        if (parts.length > 0) messages.push({ role: 'system', content: parts })
        break
      }
    }
  }
  return messages
}

/** Results come first, as the answer to the calls before them; what else the message holds is said after them. */
function toUserMessages(content: WireContent): Message[] {
  const blocks = toBlocks(content)
  const results: Message[] = blocks.flatMap((block) => {
    if (block.type !== 'tool_result') return []
    const isError = block.is_error ?? undefined
    return [{ role: 'tool', toolCallId: block.tool_use_id, content: toContent(block.content), isError }]
  })
  const rest = toContent(blocks.filter((block) => block.type !== 'tool_result'))
  return rest.length > 0 || results.length === 0 ? [...results, { role: 'user', content: rest }] : results
}

function toAssistant(content: WireContent, vault: Vault): AssistantMessage {
  const blocks = toBlocks(content)
  const thoughts = blocks.flatMap((block) => toThought(block, vault))
  const toolCalls = blocks.flatMap((block) => (block.type === 'tool_use' ? [toToolCall(block)] : []))
  return {
    role: 'assistant',
    content: joinTexts(toContent(blocks.filter((block) => !ASSISTANT_ONLY.has(block.type)))),
    toolCalls,
    ...(thoughts.length === 0 ? {} : { reasoning: thoughts.join('') }),
  }
}

const ASSISTANT_ONLY: ReadonlySet<WireBlock['type']> = new Set(['thinking', 'redacted_thinking', 'tool_use'])

/** The seal before the text: it holds what was sampled, while the text may be left out or trimmed. */
function toThought(block: WireBlock, vault: Vault): string[] {
  if (block.type !== 'thinking' && block.type !== 'redacted_thinking') return []
  const sealed = block.type === 'thinking' ? block.signature : block.data
  const shown = block.type === 'thinking' ? block.thinking : undefined
  const thought = (sealed ? vault.open(sealed) : undefined) ?? shown
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

/** One sampled text comes back as several blocks when something else was sampled in between. */
function joinTexts(parts: readonly ContentPart[]): ContentPart[] {
  const joined: ContentPart[] = []
  for (const part of parts) {
    const last = joined.at(-1)
    if (last?.type === 'text' && part.type === 'text') {
      joined.splice(-1, 1, { type: 'text', text: last.text + part.text })
    } else {
      joined.push(part)
    }
  }
  return joined
}

function joinTurns(first: AssistantMessage, second: AssistantMessage): AssistantMessage {
  const reasoning = [first.reasoning, second.reasoning].filter((text) => text !== undefined)
  return {
    role: 'assistant',
    content: joinTexts([...first.content, ...second.content]),
    toolCalls: [...first.toolCalls, ...second.toolCalls],
    ...(reasoning.length === 0 ? {} : { reasoning: reasoning.join('') }),
  }
}

function toBlocks(content: WireContent): readonly WireBlock[] {
  return typeof content === 'string' ? [{ type: 'text', text: content }] : (content ?? [])
}

/** Empty texts say nothing, and a harness that got one from us may or may not send it back. */
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
    case 'document':
      // Plain text is put to the model as it is; other documents are for the vendor's own models to read.
      if (block.source.type === 'text' && block.source.data) return [{ type: 'text', text: block.source.data }]
      return [toOther(block)]
    case 'tool_reference':
      // The definition itself joins the tools. Without a word here the result of a search would be empty.
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

/** Without the cache mark: it moves from request to request, and equal histories must stay equal. */
function toOther(wire: WireFields): ContentPart {
  const { cache_control: _, ...rest } = wire
  return { type: 'other', wire: rest }
}

/**
 * The tools the model may call now, in the order they became available. Deferred ones are declared for later: a result
 * that refers to them brings them in, as does a system message. Where the vendor's search was to find them, which is not
 * here, they are all there from the start.
 */
function toTools(wire: WireRequest): Tool[] {
  const declared = new Map<string, Tool>()
  const offered = new Map<string, Tool>()
  const offer = (name: string): void => {
    const tool = declared.get(name)
    if (tool !== undefined) offered.set(name, tool)
  }
  const isSearchedByVendor = wire.tools?.some((tool) => tool.type?.startsWith('tool_search_tool')) ?? false
  for (const tool of (wire.tools ?? []).flatMap(toDeclaration)) {
    declared.set(tool.name, tool)
    if (!tool.isDeferred || isSearchedByVendor) offer(tool.name)
  }
  for (const block of wire.messages.flatMap(({ content }) => toBlocks(content))) {
    switch (block.type) {
      case 'tool_result':
        if (typeof block.content === 'string') break
        for (const part of block.content ?? []) if (part.type === 'tool_reference') offer(part.tool_name)
        break
      case 'tool_addition':
        for (const tool of toDeclaration(block.tool.definition ?? {})) declared.set(tool.name, tool)
        offer(block.tool.definition?.name ?? block.tool.name ?? '')
        break
      case 'tool_removal':
        offered.delete(block.tool.name ?? '')
        break
    }
  }
  if (wire.tool_choice?.type === 'tool') offer(wire.tool_choice.name)
  return [...offered.values()]
}
