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
import type { Speech } from '../../model/sample-facts.ts'
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

/** What was said up to some point: for each message its digest and the step that told it. */
interface Told {
  digest: string
  stepId: number
}

/**
 * One conversation as ATIF's list of steps, given sample by sample. Samples repeat what came before them; a step is written
 * once. Where a sample goes back, or its history was rewritten, its first new step says after which step it stands, and
 * what was said before is copied context.
 */
export class AtifConversation {
  readonly #nodes: ReadonlyMap<string, CallNode>
  readonly #promptIds: boolean
  readonly #hasAudio: boolean
  /** The line of messages that the last one stood in. */
  #told: Told[] = []
  readonly #known = new Set<string>()
  readonly #calls = new Set<string>()
  /** Not written yet: results of its tool calls may follow. */
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

  /** JSON of the steps, with commas between them. */
  *tell(speeches: Iterable<Speech>): Generator<string> {
    const before = this.#told
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
      if (this.#told === before) this.#told = before.slice(0, at)
      const isRetold = isPrompt && at < before.length && this.#known.has(digest)
      const isCopied = !isNewCall && (isRetold || message.role === 'assistant')
      yield* this.#add(message, newCalls, isCopied)
      this.#told.push({ digest, stepId: this.#open?.step_id ?? 0 })
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

  *#add(message: ChatMessage, calls: readonly SampleCall[], isCopied: boolean): Generator<string> {
    const after = this.#told.at(-1)?.stepId ?? 0
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
      ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
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
    return { source: isSystem ? 'system' : 'user', message: content, ...(left === undefined ? {} : { extra: left }) }
  }

  /** A result names a call of its own step, or none. */
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

  /** Of the calls whose answers make up one step: the prompt of the first, the sampled tokens of all. */
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

/** Tells messages apart by what they say; thinking is not compared, for harnesses leave it out of a history. */
function digestOf(message: ChatMessage): string {
  const said = [
    message.role,
    chatParts(message.content).filter((part) => part.type !== 'text' || part.text !== ''),
    chatCalls(message).map(({ id, name }) => [id, name]),
    answeredCall(message) ?? null,
  ]
  return createHash('sha1').update(JSON.stringify(said)).digest('base64')
}

/** Of the last call; with `joined_calls` where the harness joined a truncated answer and its continuation. */
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
    ...(call.weightVersion === undefined ? {} : { weight_version: call.weightVersion }),
    ...(call.newestWeightVersion === undefined ? {} : { newest_weight_version: call.newestWeightVersion }),
    ...callFacts(call),
    ...(call.endedAt === undefined ? {} : { duration_ms: call.endedAt - call.startedAt }),
  }
}

/** ATIF wants an object of arguments; the sampled text is kept beside it unless it is what printing the object gives. */
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

/** `input_audio.format` of Chat Completions, as ATIF names media types. */
const AUDIO_TYPES: Readonly<Record<string, string>> = { wav: 'audio/wav', mp3: 'audio/mpeg' }

/** Text, images and, where the version has them, audio parts; what ATIF has no part for is left over. */
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
