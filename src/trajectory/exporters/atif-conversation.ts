import { createHash } from 'node:crypto'
import {
  answeredCall,
  chatCalls,
  chatParts,
  chatReasoning,
  type ChatCall,
  type ChatMessage,
} from '../../model/chat-message.ts'
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
  /** The line of messages that the last one stood in. */
  #told: Told[] = []
  readonly #known = new Set<string>()
  readonly #calls = new Set<string>()
  /** Not written yet: results of its tool calls may follow. */
  #open: Step | undefined
  #steps = 0
  readonly #sums = { prompt: 0, completion: 0, cached: 0, calls: 0, cachedCalls: 0 }

  constructor(nodes: ReadonlyMap<string, CallNode>, { promptIds }: { promptIds: boolean }) {
    this.#nodes = nodes
    this.#promptIds = promptIds
  }

  /** JSON of the steps, with commas between them. */
  *tell(speeches: Iterable<Speech>): Generator<string> {
    const before = this.#told
    let at = 0
    let isShared = true
    for (const { message, call, isPrompt } of speeches) {
      const digest = digestOf(message)
      const isNewCall = call !== undefined && !this.#calls.has(call.key)
      isShared &&= !isNewCall && before[at]?.digest === digest
      if (isShared) {
        at += 1
        continue
      }
      if (this.#told === before) this.#told = before.slice(0, at)
      const isRetold = isPrompt && at < before.length && this.#known.has(digest)
      const isCopied = !isNewCall && (isRetold || message.role === 'assistant')
      yield* this.#add(message, isNewCall ? call : undefined, isCopied)
      this.#told.push({ digest, stepId: this.#open?.step_id ?? 0 })
      this.#known.add(digest)
      if (call !== undefined) this.#calls.add(call.key)
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

  *#add(message: ChatMessage, call: SampleCall | undefined, isCopied: boolean): Generator<string> {
    const after = this.#told.at(-1)?.stepId ?? 0
    if (message.role === 'tool' && this.#open?.step_id === after) {
      this.#open.observation ??= { results: [] }
      this.#open.observation.results.push(toResult(message, this.#open))
      return
    }
    yield* this.#close()
    const body = message.role === 'assistant' ? this.#toAgentStep(message, call) : toOtherStep(message)
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

  #toAgentStep(message: ChatMessage, call: SampleCall | undefined): StepBody {
    const reasoning = chatReasoning(message)
    const calls = chatCalls(message)
    const { content, left } = toContent(message)
    const node = call && this.#nodes.get(call.key)
    return {
      ...(call === undefined ? {} : { timestamp: new Date(call.startedAt).toISOString() }),
      source: 'agent',
      ...(node === undefined ? {} : { model_name: node.response.model }),
      message: content,
      ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls.map(toToolCall) }),
      ...(node === undefined ? {} : { metrics: this.#toMetrics(node), llm_call_count: 1 }),
      ...(call === undefined && left === undefined ? {} : { extra: { ...left, ...(call && callExtra(call)) } }),
    }
  }

  #toMetrics({ response, choice }: CallNode): Wire {
    const { usage, promptIds } = response
    const prompt = usage?.promptTokens ?? promptIds.length
    const completion = choice.ids.length
    this.#sums.prompt += prompt
    this.#sums.completion += completion
    this.#sums.calls += 1
    if (usage?.cachedTokens !== undefined) {
      this.#sums.cached += usage.cachedTokens
      this.#sums.cachedCalls += 1
    }
    return {
      prompt_tokens: prompt,
      completion_tokens: completion,
      ...(usage?.cachedTokens === undefined ? {} : { cached_tokens: usage.cachedTokens }),
      ...(this.#promptIds ? { prompt_token_ids: Array.from(promptIds) } : {}),
      completion_token_ids: Array.from(choice.ids),
      ...(choice.logprobs.every(Number.isFinite) ? { logprobs: Array.from(choice.logprobs) } : {}),
    }
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

function toOtherStep(message: ChatMessage): StepBody {
  const { content, left } = toContent(message)
  const isSystem = message.role === 'system' || message.role === 'developer'
  if (message.role === 'tool') return { source: 'system', message: '', observation: { results: [toResult(message)] } }
  return { source: isSystem ? 'system' : 'user', message: content, ...(left === undefined ? {} : { extra: left }) }
}

/** ATIF wants an object of arguments; the sampled text is kept beside it unless it is what printing the object gives. */
function toToolCall(call: ChatCall): { tool_call_id: string } & Wire {
  const parsed = parseObject(call.arguments)
  const isSame = parsed !== undefined && JSON.stringify(parsed) === call.arguments
  return {
    tool_call_id: call.id,
    function_name: call.name,
    arguments: parsed ?? {},
    ...(isSame ? {} : { extra: { arguments_text: call.arguments } }),
  }
}

function parseObject(text: string): Wire | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Wire) : undefined
  } catch {
    return undefined
  }
}

/** A result names a call of its own step, or none. */
function toResult(message: ChatMessage, step?: StepBody): Wire {
  const id = answeredCall(message)
  const { content, left } = toContent(message)
  const isOwn = step?.tool_calls?.some((call) => call.tool_call_id === id) === true
  const extra = { ...left, ...(isOwn || id === undefined ? {} : { tool_call_id: id }) }
  return {
    ...(isOwn ? { source_call_id: id } : {}),
    content,
    ...(Object.keys(extra).length === 0 ? {} : { extra }),
  }
}

const IMAGE_TYPES = ['image/jpeg', 'image/png', 'image/gif', 'image/webp']

/** Text and images; what ATIF has no part for is left over. */
function toContent({ content }: ChatMessage): { content: unknown; left?: Wire } {
  if (typeof content === 'string') return { content }
  const parts = chatParts(content)
  if (parts.length === 0) return { content: '' }
  const left: unknown[] = []
  const known = parts.flatMap((part): Wire[] => {
    if (part.type === 'text') return [{ type: 'text', text: part.text }]
    const type = part.type === 'image' ? imageTypeOf(part.url) : undefined
    if (part.type === 'image' && type !== undefined) {
      return [{ type: 'image', source: { media_type: type, path: part.url } }]
    }
    left.push(part.type === 'image' ? part.url : part.wire)
    return []
  })
  return { content: known, ...(left.length === 0 ? {} : { left: { other_parts: left } }) }
}

function imageTypeOf(url: string): string | undefined {
  const type = /^data:([^;,]+)/.exec(url)?.[1] ?? `image/${/\.(\w+)(?:[?#]|$)/.exec(url)?.[1]?.toLowerCase()}`
  return IMAGE_TYPES.find((known) => known === type.replace('image/jpg', 'image/jpeg'))
}
