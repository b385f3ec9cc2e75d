import { parseJsonObject } from '../../lib/json/json-text.ts'
import { formatSse } from '../../lib/net/sse.ts'
import type { ToolCallDelta } from '../../model/stream-event.ts'
import type { WireFields } from '../wire-event.ts'
import type { TextSealer } from './dialect.ts'

/** An addition to one kind of block. Texts are not empty. */
type Piece = { kind: 'thinking' | 'text'; text: string } | { kind: 'call'; call: ToolCallDelta }

type OpenBlock =
  | { kind: 'thinking'; text: string }
  | { kind: 'text' }
  | { kind: 'call'; index: number; arguments: string; isComplete: boolean }

/**
 * Renders pieces as the frames of content blocks, with one block open at a time, as clients of Anthropic Messages expect. A
 * closed block cannot be reopened, so pieces of other blocks wait while the arguments of a call are incomplete, at most
 * until the end of the answer.
 */
export class BlockStream {
  readonly #showThinking: boolean
  readonly #sealer: TextSealer
  readonly #calls = new Set<number>()
  #index = 0
  #open: OpenBlock | undefined
  #waiting: Piece[] = []
  /** For calls without an id of the engine. */
  answerId = ''

  constructor(options: { showThinking: boolean; sealer: TextSealer }) {
    this.#showThinking = options.showThinking
    this.#sealer = options.sealer
  }

  get hasCalls(): boolean {
    return this.#calls.size > 0
  }

  add(piece: Piece): string {
    if (this.#mustWait(piece)) {
      this.#waiting.push(piece)
      return ''
    }
    const frames = this.#write(piece)
    return this.#waiting.length > 0 && isClosable(this.#open) ? frames + this.#addWaiting() : frames
  }

  /** Closes the open block. An empty answer becomes an empty text block. */
  end(): string {
    let frames = ''
    while (this.#waiting.length > 0) frames += this.#close() + this.#addWaiting()
    if (this.#index === 0 && this.#open === undefined) frames += this.#start({ kind: 'text' }, EMPTY_TEXT)
    return frames + this.#close()
  }

  #mustWait(piece: Piece): boolean {
    const open = this.#open
    if (open?.kind !== 'call' || (piece.kind === 'call' && piece.call.index === open.index)) return false
    return !isClosable(open)
  }

  #addWaiting(): string {
    const waiting = this.#waiting
    this.#waiting = []
    return waiting.map((piece) => this.add(piece)).join('')
  }

  #write(piece: Piece): string {
    switch (piece.kind) {
      case 'thinking':
        return this.#writeThinking(piece.text)
      case 'text': {
        const start = this.#open?.kind === 'text' ? '' : this.#start({ kind: 'text' }, EMPTY_TEXT)
        return start + this.#delta({ type: 'text_delta', text: piece.text })
      }
      case 'call':
        return this.#writeCall(piece.call)
    }
  }

  #writeThinking(text: string): string {
    let frames = ''
    let open = this.#open
    if (open?.kind !== 'thinking') {
      open = { kind: 'thinking', text: '' }
      frames = this.#start(open, { type: 'thinking', thinking: '', signature: '' })
    }
    open.text += text
    return this.#showThinking ? frames + this.#delta({ type: 'thinking_delta', thinking: text }) : frames
  }

  #writeCall(call: ToolCallDelta): string {
    let frames = ''
    if (!this.#calls.has(call.index)) {
      this.#calls.add(call.index)
      const block = { type: 'tool_use', id: callId(this.answerId, call), name: call.name ?? '', input: {} }
      frames = this.#start({ kind: 'call', index: call.index, arguments: '', isComplete: false }, block)
    }
    const open = this.#open
    // Only white space can follow complete arguments, and their block may be closed by then.
    if (!call.arguments || open?.kind !== 'call' || open.index !== call.index) return frames
    open.arguments += call.arguments
    return frames + this.#delta({ type: 'input_json_delta', partial_json: call.arguments })
  }

  #start(open: OpenBlock, block: WireFields): string {
    const closed = this.#close()
    this.#open = open
    return closed + frame({ type: 'content_block_start', index: this.#index, content_block: block })
  }

  #delta(delta: WireFields): string {
    return frame({ type: 'content_block_delta', index: this.#index, delta })
  }

  #close(): string {
    const open = this.#open
    if (open === undefined) return ''
    // One frame: some clients join the parts of a signature, others keep the last part.
    const signature =
      open.kind === 'thinking' ? this.#delta({ type: 'signature_delta', signature: this.#sealer.seal(open.text) }) : ''
    const stop = frame({ type: 'content_block_stop', index: this.#index })
    this.#open = undefined
    this.#index += 1
    return signature + stop
  }
}

const EMPTY_TEXT = { type: 'text', text: '' }

function isClosable(open: OpenBlock | undefined): boolean {
  if (open?.kind !== 'call') return true
  // Complete arguments stay complete, and a text that does not end with a brace needs no parsing.
  open.isComplete ||= open.arguments.trimEnd().endsWith('}') && parseJsonObject(open.arguments) !== undefined
  return open.isComplete
}

/** Returns the engine's id, or an id that is unique in the session. */
export function callId(answerId: string, call: { id?: string; index: number }): string {
  return call.id || `toolu_${answerId}_${call.index}`
}

/** Clients of this API read the `event:` line, not the type in the data. */
export function frame(event: { type: string } & WireFields): string {
  return formatSse(JSON.stringify(event), event.type)
}
