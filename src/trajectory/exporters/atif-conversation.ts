import { createHash } from 'node:crypto'
import {
  answeredCall,
  chatCalls,
  chatParts,
  chatReasoning,
  type ChatCall,
  type ChatMessage,
  type ChatPart,
} from '../../model/chat-message.ts'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import type { SampleCall } from '../../model/sample.ts'
import type { SampleMessage } from '../../model/sample-facts.ts'
import type { CallNode } from '../graph/call-graph.ts'
import { callFacts } from '../sampling-fields.ts'
import { wireFinishReason } from '../to-trace.ts'

type Wire = Record<string, unknown>

interface StepBody {
  source: 'system' | 'user' | 'agent'
  message: unknown
  timestamp?: string
  model_name?: string
  reasoning_content?: string
  tool_calls?: { tool_call_id: string }[]
  observation?: { results: Wire[] }
  metrics?: Wire
  llm_call_count?: number
  is_copied_context?: boolean
  extra?: Wire
}

interface Step extends StepBody {
  step_id: number
}

/** A written message: its digest and its step. */
interface WrittenMessage {
  digest: string
  stepId: number
}

/**
 * Writes one conversation as ATIF steps, sample by sample. Samples repeat earlier messages; each step is written once. If a
 * sample branches off earlier, or its history was rewritten, `after_step` of its first new step names the step before it, and
 * repeated messages are marked as copied context.
 */
export class AtifConversation {
  readonly #nodes: ReadonlyMap<string, CallNode>
  readonly #promptIds: boolean
  readonly #hasAudio: boolean
  /** The messages of the current branch. */
  #written: WrittenMessage[] = []
  readonly #known = new Set<string>()
  readonly #calls = new Set<string>()
  /** The step that is not written yet, because results of its tool calls may follow. */
  #open: Step | undefined
  #steps = 0
  readonly #sums = { prompt: 0, completion: 0, cached: 0, calls: 0, cachedCalls: 0 }

  /** `hasAudio`: whether the schema version has audio parts. */
  constructor(
    nodes: ReadonlyMap<string, CallNode>,
    { promptIds, hasAudio }: { promptIds: boolean; hasAudio: boolean },
  ) {
    this.#nodes = nodes
    this.#promptIds = promptIds
    this.#hasAudio = hasAudio
  }

  /** Yields the JSON of the new steps, separated by commas. */
  *add(speeches: Iterable<SampleMessage>): Generator<string> {
    const before = this.#written
    let at = 0
    let isShared = true
    for (const { message, calls, isPrompt } of speeches) {
      const digest = digestOf(message)
      const newCalls = calls.filter(({ key }) => !this.#calls.has(key))
      const isNewCall = newCalls.length > 0
      isShared &&= !isNewCall && before[at]?.digest === digest
      if (isShared) {
        at += 1
        continue
      }
      if (this.#written === before) this.#written = before.slice(0, at)
      const isRepeated = isPrompt && at < before.length && this.#known.has(digest)
      const isCopied = !isNewCall && (isRepeated || message.role === 'assistant')
      yield* this.#addMessage(message, newCalls, isCopied)
      this.#written.push({ digest, stepId: this.#open?.step_id ?? 0 })
      this.#known.add(digest)
      for (const { key } of newCalls) this.#calls.add(key)
    }
  }

  *end(): Generator<string> {
    yield* this.#close()
  }

  totals(): Wire {
    const { prompt, completion, cached, calls, cachedCalls } = this.#sums
    return {
      total_prompt_tokens: prompt,
      total_completion_tokens: completion,
      ...(calls > 0 && cachedCalls === calls ? { total_cached_tokens: cached } : {}),
      total_steps: this.#steps,
    }
  }

  *#addMessage(message: ChatMessage, calls: readonly SampleCall[], isCopied: boolean): Generator<string> {
    const after = this.#written.at(-1)?.stepId ?? 0
    if (message.role === 'tool' && this.#open?.step_id === after) {
      this.#open.observation ??= { results: [] }
      this.#open.observation.results.push(this.#toResult(message, this.#open))
      return
    }
    yield* this.#close()
    const body = message.role === 'assistant' ? this.#toAgentStep(message, calls) : this.#toOtherStep(message)
    const isNext = after === this.#steps
    this.#steps += 1
    this.#open = {
      step_id: this.#steps,
      ...body,
      ...(isCopied ? { is_copied_context: true } : {}),
      ...(isNext ? {} : { extra: { ...body.extra, after_step: after } }),
    }
  }

  *#close(): Generator<string> {
    if (this.#open === undefined) return
    yield (this.#open.step_id === 1 ? '' : ',') + JSON.stringify(this.#open)
    this.#open = undefined
  }

  #toAgentStep(message: ChatMessage, calls: readonly SampleCall[]): StepBody {
    const reasoning = chatReasoning(message)
    const toolCalls = chatCalls(message)
    const { content, left } = toContent(message, this.#hasAudio)
    const nodes = calls.map(({ key }) => this.#nodes.get(key)).filter((found) => found !== undefined)
    const [node] = nodes
    const extra = { ...left, ...callsExtra(calls) }
    return {
      ...(calls[0] === undefined ? {} : { timestamp: new Date(calls[0].startedAt).toISOString() }),
      source: 'agent',
      ...(node === undefined ? {} : { model_name: node.response.model }),
      message: content,
      reasoning_content: reasoning,
      ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls.map(toToolCall) }),
      ...(node === undefined ? {} : { metrics: this.#toMetrics(node, nodes), llm_call_count: nodes.length }),
      ...(Object.keys(extra).length === 0 ? {} : { extra }),
    }
  }

  #toOtherStep(message: ChatMessage): StepBody {
    if (message.role === 'tool') {
      return { source: 'system', message: '', observation: { results: [this.#toResult(message)] } }
    }
    const { content, left } = toContent(message, this.#hasAudio)
    const isSystem = message.role === 'system' || message.role === 'developer'
    return { source: isSystem ? 'system' : 'user', message: content, extra: left }
  }

  /** `source_call_id` may only name a call of the same step. */
  #toResult(message: ChatMessage, step?: StepBody): Wire {
    const id = answeredCall(message)
    const { content, left } = toContent(message, this.#hasAudio)
    const isOwn = step?.tool_calls?.some((call) => call.tool_call_id === id) === true
    const extra = { ...left, ...(isOwn || id === undefined ? {} : { tool_call_id: id }) }
    return {
      ...(isOwn ? { source_call_id: id } : {}),
      content,
      ...(Object.keys(extra).length === 0 ? {} : { extra }),
    }
  }

  /** Metrics of one step: the prompt of its first call and the sampled tokens of all its calls. */
  #toMetrics({ response }: CallNode, nodes: readonly CallNode[]): Wire {
    const { usage, promptIds } = response
    const prompt = usage?.promptTokens ?? promptIds.length
    const ids = nodes.flatMap(({ choice }) => Array.from(choice.ids))
    const logprobs = nodes.flatMap(({ choice }) => Array.from(choice.logprobs))
    for (const node of nodes) this.#count(node)
    return {
      prompt_tokens: prompt,
      completion_tokens: ids.length,
      ...(usage?.cachedTokens === undefined ? {} : { cached_tokens: usage.cachedTokens }),
      ...(this.#promptIds ? { prompt_token_ids: Array.from(promptIds) } : {}),
      completion_token_ids: ids,
      ...(logprobs.every(Number.isFinite) ? { logprobs } : {}),
    }
  }

  #count({ response: { usage, promptIds }, choice }: CallNode): void {
    this.#sums.prompt += usage?.promptTokens ?? promptIds.length
    this.#sums.completion += choice.ids.length
    this.#sums.calls += 1
    if (usage?.cachedTokens === undefined) return
    this.#sums.cached += usage.cachedTokens
    this.#sums.cachedCalls += 1
  }
}

/** Digest of a message without reasoning, which harnesses omit from the history. */
function digestOf(message: ChatMessage): string {
  const compared = [
    message.role,
    chatParts(message.content).filter((part) => part.type !== 'text' || part.text !== ''),
    chatCalls(message).map(({ id, name }) => [id, name]),
    answeredCall(message) ?? null,
  ]
  return createHash('sha1').update(JSON.stringify(compared)).digest('base64')
}

/**
 * Facts of the last call. `joined_calls` lists all calls if the harness joined a truncated answer and its continuation.
 */
function callsExtra(calls: readonly SampleCall[]): Wire {
  const last = calls.at(-1)
  if (last === undefined) return {}
  return { ...callExtra(last), ...(calls.length > 1 ? { joined_calls: calls.map(callExtra) } : {}) }
}

function callExtra(call: SampleCall): Wire {
  return {
    turn_id: call.turnId,
    choice: call.choice,
    label: call.label,
    is_trained: call.isTrained,
    finish_reason: wireFinishReason(call.finishReason),
    grade: call.grade,
    weight_version: call.weightVersion,
    newest_weight_version: call.newestWeightVersion,
    ...callFacts(call),
    ...(call.endedAt === undefined ? {} : { duration_ms: call.endedAt - call.startedAt }),
  }
}

/**
 * ATIF requires arguments as an object. The sampled text is kept in `extra` if serializing the object gives another
 * text.
 */
function toToolCall(call: ChatCall): { tool_call_id: string } & Wire {
  const parsed = parseJsonObject(call.arguments)
  const isSame = parsed !== undefined && JSON.stringify(parsed) === call.arguments
  return {
    tool_call_id: call.id,
    function_name: call.name,
    arguments: parsed ?? {},
    ...(isSame ? {} : { extra: { arguments_text: call.arguments } }),
  }
}

const IMAGE_TYPES = ['image/jpeg', 'image/png', 'image/gif', 'image/webp']

/** ATIF media types of `input_audio.format` in Chat Completions. */
const AUDIO_TYPES: Readonly<Record<string, string>> = { wav: 'audio/wav', mp3: 'audio/mpeg' }

/**
 * Returns text, image and, if the schema version supports them, audio parts. `left`: parts that ATIF cannot represent.
 */
function toContent({ content }: ChatMessage, hasAudio: boolean): { content: unknown; left?: Wire } {
  if (typeof content === 'string') return { content }
  const parts = chatParts(content)
  if (parts.length === 0) return { content: '' }
  const left: unknown[] = []
  const known = parts.flatMap((part): Wire[] => {
    const wire = toContentPart(part, hasAudio)
    if (wire !== undefined) return [wire]
    left.push(part.type === 'image' ? part.url : part.type === 'other' ? part.wire : part.text)
    return []
  })
  return { content: known, ...(left.length === 0 ? {} : { left: { other_parts: left } }) }
}

function toContentPart(part: ChatPart, hasAudio: boolean): Wire | undefined {
  switch (part.type) {
    case 'text':
      return { type: 'text', text: part.text }
    case 'image': {
      const type = imageTypeOf(part.url)
      return type === undefined ? undefined : { type: 'image', source: { media_type: type, path: part.url } }
    }
    case 'other': {
      const source = hasAudio ? audioSource(part.wire) : undefined
      return source === undefined ? undefined : { type: 'audio', source }
    }
  }
}

function audioSource(wire: unknown): Wire | undefined {
  const audio = (wire as { input_audio?: { data?: unknown; format?: unknown } | null } | null)?.input_audio
  if (typeof audio?.data !== 'string' || typeof audio.format !== 'string') return undefined
  const type = AUDIO_TYPES[audio.format]
  return type === undefined ? undefined : { media_type: type, path: `data:${type};base64,${audio.data}` }
}

function imageTypeOf(url: string): string | undefined {
  const type = /^data:([^;,]+)/.exec(url)?.[1] ?? `image/${/\.(\w+)(?:[?#]|$)/.exec(url)?.[1]?.toLowerCase()}`
  return IMAGE_TYPES.find((known) => known === type.replace('image/jpg', 'image/jpeg'))
}
