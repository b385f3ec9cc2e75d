import { formatSse } from '../../lib/net/sse.ts'
import type { AnswerStart, ToolCallDelta } from '../../model/stream-event.ts'
import type { DeltaEvent, WireEvent, WireFields } from '../wire-event.ts'
import type { FinishReason, Usage } from '../../model/turn.ts'
import { SSE_COMMENT } from './wire/openai-api.ts'

/** Renders one call; see `openai-responses-tools.ts`. */
interface CallWriter {
  push(piece: string): string
  end(): string
  item(status: string): WireFields
  text?: { delta: string; done: string; field: string }
}

interface OutgoingCall {
  name: string
  callId: string
  itemId(prefix: string): string
}

/** Properties of the request that affect the rendering of its answer. */
export interface AnswerShape {
  echo: WireFields
  /** Whether the reasoning is shown as its summary. The summary is the whole reasoning. */
  showsSummary: boolean
  showsLogprobs: boolean
  acceptsComments: boolean
  /** Whether the text is a compacted conversation, which is sent sealed. */
  isCompaction: boolean
  seal(text: string): string
  isStreamed(name: string): boolean
  /** `whole`: all arguments, for calls that are not streamed. */
  createCall(call: OutgoingCall, whole?: string): CallWriter
}

/**
 * Renders one answer as the events of the Responses API and as the response object. Items are strictly sequential, because
 * some clients keep only the last item open.
 */
export class ResponseWriter {
  readonly #shape: AnswerShape
  readonly #output: WireFields[] = []
  readonly #calls = new Map<number, PendingCall>()
  readonly #callIds = new Set<string>()
  #frames = ''
  #sequence = 0
  #start: AnswerStart | undefined
  #open: OpenItem | undefined
  /** Text that arrived while a call was open. It waits, because the call may not be complete. */
  #held: { text: string; logprobs: unknown[] } | undefined
  #compacted = ''
  #finish: FinishReason | undefined
  #ended = false
  #usage: WireFields | undefined
  #promptLength: number | undefined
  #sampled = 0

  constructor(shape: AnswerShape) {
    this.#shape = shape
  }

  write(event: WireEvent): string {
    this.#frames = ''
    switch (event.type) {
      case 'answer-start':
        this.#start = event
        this.#promptLength = event.promptTokenIds?.length
        this.#emit('response.created', { response: this.response() })
        this.#emit('response.in_progress', { response: this.response() })
        break
      case 'choice-delta':
        // This API has one answer for a request.
        if (event.choice === 0) this.#add(event)
        break
      case 'usage':
        this.#usage = renderUsage(event.usage, event.wire)
        break
      case 'answer-end':
        this.#promptLength ??= event.promptTokenIds?.length
        this.#end()
        break
      case 'answer-error':
        break
    }
    return this.#frames
  }

  /**
   * During the answer this is an event of the API without content. Before and after that no such event is possible: OpenAI's
   * stream helpers reject a response whose id changes, and the final events have their numbers while they wait for the
   * store. There, clients that ignore comments get a comment. Codex counts only events, and accepts an unknown one.
   */
  keepAlive(): string {
    this.#frames = ''
    if (this.#start !== undefined && this.#finish === undefined && !this.#ended) this.#emitEmpty()
    else if (this.#shape.acceptsComments) return SSE_COMMENT
    else this.#emit('keepalive', {})
    return this.#frames
  }

  #emitEmpty(): void {
    const open = this.#open
    const call = open?.kind === 'call' ? open.item : undefined
    if (open?.kind === 'message') {
      this.#emit('response.output_text.delta', { ...this.#position(open), delta: '', logprobs: [] })
    } else if (open?.kind === 'reasoning') {
      this.#emit(this.#reasoningDelta(), { ...this.#position(open), delta: '' })
    } else if (call?.writer.text !== undefined) {
      this.#emit(call.writer.text.delta, { item_id: call.id, output_index: call.index, delta: '' })
    } else {
      this.#emit('response.in_progress', { response: this.response() })
    }
  }

  response(): WireFields {
    const status = this.#ended ? (this.#incomplete() === undefined ? 'completed' : 'incomplete') : 'in_progress'
    const reason = this.#incomplete()
    return {
      id: toResponseId(this.#start?.id ?? ''),
      object: 'response',
      created_at: this.#start?.created ?? 0,
      status,
      error: null,
      incomplete_details: this.#ended && reason !== undefined ? { reason } : null,
      ...this.#shape.echo,
      output: [...this.#output],
      usage: this.#ended ? this.usage() : null,
    }
  }

  usage(): WireFields {
    // Counted here if the engine reports no usage: clients treat an answer without usage as broken.
    const counted = { promptTokens: this.#promptLength ?? 0, completionTokens: this.#sampled }
    return this.#usage ?? renderUsage(counted)
  }

  #add(delta: DeltaEvent): void {
    this.#sampled += delta.ids?.length ?? 0
    if (delta.finishReason !== undefined) this.#finish = delta.finishReason
    if (this.#shape.isCompaction) {
      this.#compacted += delta.text ?? ''
      return
    }
    if (delta.reasoning) this.#addReasoning(delta.reasoning)
    if (delta.text) this.#addText(delta.text, this.#shape.showsLogprobs ? logprobsOf(delta) : [])
    for (const call of delta.toolCalls ?? []) this.#addCall(call)
  }

  #end(): void {
    if (this.#shape.isCompaction) this.#addCompaction()
    this.#ended = true
    this.#closeAll(this.#incomplete() === undefined ? 'completed' : 'incomplete')
    const type = this.#incomplete() === undefined ? 'response.completed' : 'response.incomplete'
    this.#emit(type, { response: this.response() })
  }

  #incomplete(): string | undefined {
    return INCOMPLETE[this.#finish ?? 'cut']
  }

  #addReasoning(text: string): void {
    if (this.#open?.kind !== 'reasoning') {
      this.#closeAll('completed')
      this.#open = { kind: 'reasoning', text: '', ...this.#begin('rs', { type: 'reasoning', summary: [] }) }
      const part = this.#reasoningPart('')
      this.#emit(this.#shape.showsSummary ? `${SUMMARY}_part.added` : 'response.content_part.added', {
        ...this.#position(this.#open),
        part,
      })
    }
    this.#open.text += text
    this.#emit(this.#reasoningDelta(), { ...this.#position(this.#open), delta: text })
  }

  #reasoningDelta(): string {
    return this.#shape.showsSummary ? `${SUMMARY}_text.delta` : 'response.reasoning_text.delta'
  }

  #addText(text: string, logprobs: unknown[]): void {
    if (this.#open?.kind === 'call') {
      this.#held = { text: (this.#held?.text ?? '') + text, logprobs: [...(this.#held?.logprobs ?? []), ...logprobs] }
      return
    }
    if (this.#open?.kind !== 'message') {
      this.#closeAll('completed')
      const item = { type: 'message', status: 'in_progress', role: 'assistant', content: [] }
      this.#open = { kind: 'message', text: '', logprobs: [], ...this.#begin('msg', item) }
      this.#emit('response.content_part.added', { ...this.#position(this.#open), part: outputText('', []) })
    }
    this.#open.text += text
    this.#open.logprobs.push(...logprobs)
    this.#emit('response.output_text.delta', { ...this.#position(this.#open), delta: text, logprobs })
  }

  #addCall(delta: ToolCallDelta): void {
    let call = this.#calls.get(delta.index)
    if (call === undefined) {
      this.#closeAll('completed')
      call = { id: '', name: '', arguments: '' }
      this.#calls.set(delta.index, call)
      this.#open = { kind: 'call', call }
    }
    // Engines send calls one after the other. A piece of a closed call is dropped.
    if (this.#open?.kind !== 'call' || this.#open.call !== call) return
    if (delta.id !== undefined) call.id = delta.id
    if (delta.name !== undefined) call.name += delta.name
    if (!delta.arguments) return
    call.arguments += delta.arguments
    // A name may arrive in pieces, so it is complete only when the arguments begin.
    if (!this.#shape.isStreamed(call.name)) return
    this.#open.item ??= this.#beginCall(call)
    this.#pushCall(this.#open.item, delta.arguments)
  }

  #beginCall(call: PendingCall, whole?: string): OpenCall {
    const index = this.#output.length
    const callId = this.#uniqueCallId(call.id, index)
    const outgoing = { name: call.name, callId, itemId: (prefix: string) => this.#itemId(prefix, index) }
    const writer = this.#shape.createCall(outgoing, whole)
    return { writer, ...this.#announce(writer.item('in_progress')) }
  }

  #pushCall(item: OpenCall, piece: string): void {
    this.#emitCall(item, item.writer.push(piece))
  }

  #emitCall(item: OpenCall, text: string): void {
    const { writer, id, index } = item
    if (text !== '' && writer.text) this.#emit(writer.text.delta, { item_id: id, output_index: index, delta: text })
  }

  #addCompaction(): void {
    const { index, id } = this.#begin('cmp', { type: 'compaction', encrypted_content: '' })
    this.#done(index, { id, type: 'compaction', encrypted_content: this.#shape.seal(this.#compacted) })
  }

  #closeAll(status: string): void {
    while (this.#open !== undefined) {
      const open = this.#open
      const held = this.#held
      this.#open = undefined
      this.#held = undefined
      const ownStatus = held === undefined ? status : 'completed'
      switch (open.kind) {
        case 'reasoning':
          this.#closeReasoning(open)
          break
        case 'message':
          this.#closeMessage(open, ownStatus)
          break
        case 'call':
          this.#closeCall(open, ownStatus)
          break
      }
      if (held !== undefined) this.#addText(held.text, held.logprobs)
    }
  }

  #closeReasoning(open: OpenReasoning): void {
    const position = this.#position(open)
    const { showsSummary } = this.#shape
    const part = this.#reasoningPart(open.text)
    this.#emit(showsSummary ? `${SUMMARY}_text.done` : 'response.reasoning_text.done', { ...position, text: open.text })
    this.#emit(showsSummary ? `${SUMMARY}_part.done` : 'response.content_part.done', { ...position, part })
    this.#done(open.index, {
      id: open.id,
      type: 'reasoning',
      summary: showsSummary ? [part] : [],
      content: [{ type: 'reasoning_text', text: open.text }],
      encrypted_content: this.#shape.seal(open.text),
    })
  }

  #reasoningPart(text: string): WireFields {
    return { type: this.#shape.showsSummary ? 'summary_text' : 'reasoning_text', text }
  }

  #closeMessage(open: OpenMessage, status: string): void {
    const { text, logprobs, index, id } = open
    const position = this.#position(open)
    const part = outputText(text, logprobs)
    this.#emit('response.output_text.done', { ...position, text, logprobs })
    this.#emit('response.content_part.done', { ...position, part })
    this.#done(index, { id, type: 'message', status, role: 'assistant', content: [part] })
  }

  #closeCall(open: OpenCallSlot, status: string): void {
    const { call } = open
    const item = open.item ?? this.#beginCall(call, this.#shape.isStreamed(call.name) ? undefined : call.arguments)
    if (open.item === undefined) this.#pushCall(item, call.arguments)
    const { writer, id, index } = item
    this.#emitCall(item, writer.end())
    const done = writer.item(status)
    if (writer.text) {
      const { done: type, field } = writer.text
      this.#emit(type, { item_id: id, output_index: index, [field]: done[field] })
    }
    this.#done(index, done)
  }

  #begin(prefix: string, fields: WireFields): ItemPosition {
    return this.#announce({ id: this.#itemId(prefix, this.#output.length), ...fields })
  }

  #announce(item: WireFields): ItemPosition {
    const index = this.#output.push(item) - 1
    this.#emit('response.output_item.added', { output_index: index, item })
    return { index, id: String(item['id']) }
  }

  #done(index: number, item: WireFields): void {
    this.#output[index] = item
    this.#emit('response.output_item.done', { output_index: index, item })
  }

  /** The index of the part is always 0, because an item has at most one part. */
  #position(open: OpenReasoning | OpenMessage): WireFields {
    const part = open.kind === 'reasoning' && this.#shape.showsSummary ? 'summary_index' : 'content_index'
    return { item_id: open.id, output_index: open.index, [part]: 0 }
  }

  #itemId(prefix: string, index: number): string {
    return toItemId(prefix, this.#start?.id ?? '', index)
  }

  /** Results refer to calls by this id, so every call needs a unique id. */
  #uniqueCallId(id: string, index: number): string {
    const unique = id === '' || this.#callIds.has(id) ? this.#itemId('call', index) : id
    this.#callIds.add(unique)
    return unique
  }

  #emit(type: string, fields: WireFields): void {
    const data = JSON.stringify({ type, sequence_number: this.#sequence++, ...fields })
    this.#frames += formatSse(data, type)
  }
}

interface ItemPosition {
  index: number
  id: string
}

interface OpenReasoning extends ItemPosition {
  kind: 'reasoning'
  text: string
}

interface OpenMessage extends ItemPosition {
  kind: 'message'
  text: string
  logprobs: unknown[]
}

interface OpenCall extends ItemPosition {
  writer: CallWriter
}

interface OpenCallSlot {
  kind: 'call'
  call: PendingCall
  /** Absent until the call was announced to the harness. */
  item?: OpenCall
}

type OpenItem = OpenReasoning | OpenMessage | OpenCallSlot

interface PendingCall {
  id: string
  name: string
  arguments: string
}

const SUMMARY = 'response.reasoning_summary'

/** Absent: the answer is complete. The API has no reason for an aborted answer; clients treat it as truncated. */
const INCOMPLETE: Readonly<Partial<Record<FinishReason, string>>> = {
  length: 'max_output_tokens',
  cut: 'max_output_tokens',
  abort: 'max_output_tokens',
  'content-filter': 'content_filter',
}

function outputText(text: string, logprobs: readonly unknown[]): WireFields {
  return { type: 'output_text', annotations: [], logprobs: [...logprobs], text }
}

/** From engines with the Chat Completions wire: entries have the same format in both APIs. */
function logprobsOf(delta: DeltaEvent): unknown[] {
  const { content } = (delta.wire?.['logprobs'] ?? {}) as { content?: unknown }
  return Array.isArray(content) ? content : []
}

function renderUsage(usage: Usage, wire: WireFields = {}): WireFields {
  const { reasoning_tokens: reasoning } = (wire['completion_tokens_details'] ?? {}) as { reasoning_tokens?: unknown }
  return {
    input_tokens: usage.promptTokens,
    // Cached tokens are part of the input. Writing to the cache is free.
    input_tokens_details: { cached_tokens: usage.cachedTokens ?? 0, cache_write_tokens: 0 },
    output_tokens: usage.completionTokens,
    output_tokens_details: { reasoning_tokens: typeof reasoning === 'number' ? reasoning : 0 },
    total_tokens: usage.promptTokens + usage.completionTokens,
  }
}

// --- ids --------------------------------------------------------------------------------------------------------------

/** The response id contains the engine's id of the answer, so that the answer can be found by either id. */
export function toResponseId(answerId: string): string {
  return `resp_${answerId}`
}

export function toAnswerId(responseId: string): string {
  return responseId.startsWith('resp_') ? responseId.slice('resp_'.length) : responseId
}

/** OpenAI's item ids have at most 64 characters, and clients shorten longer ids. */
const LONGEST_IN_ID = 52

export function toItemId(prefix: string, answerId: string, index: number): string {
  return `${prefix}_${answerId.slice(-LONGEST_IN_ID)}_${index}`
}

/** Returns the id of the answer that an item id belongs to; undefined for an id of another origin. */
export function answerOfItem(itemId: string): string | undefined {
  return /^(?:rs|msg|fc|ctc|lsh|sh|apc|tsc)_(.+)_\d+$/.exec(itemId)?.[1]
}
