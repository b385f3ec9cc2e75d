import { parseJsonObject } from '../../lib/json/json-text.ts'
import { formatSse } from '../../lib/net/sse.ts'
import type { ToolCallDelta, WireFields } from '../../model/stream-event.ts'
import type { Vault } from './dialect.ts'

/** What a step of the engine added to one kind of block; texts are not empty. */
type Piece = { kind: 'thinking' | 'text'; text: string } | { kind: 'call'; call: ToolCallDelta }

type OpenBlock =
  | { kind: 'thinking'; text: string }
  | { kind: 'text' }
  | { kind: 'call'; index: number; arguments: string; isWhole: boolean }

/**
 * Pieces to the frames of content blocks, one open at a time, as clients of Anthropic Messages expect them. A block that
 * was closed stays closed, so while the arguments of a call are not whole, pieces of anything else wait; at the latest
 * the end of the answer lets them out.
 */
export class BlockStream {
  readonly #showThinking: boolean
  readonly #vault: Vault
  readonly #calls = new Set<number>()
  #index = 0
  #open: OpenBlock | undefined
  #waiting: Piece[] = []
  /** For calls the engine gave no id. */
  answerId = ''

  constructor(options: { showThinking: boolean; vault: Vault }) {
    this.#showThinking = options.showThinking
    this.#vault = options.vault
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

  /** Closes what is open. An answer of nothing at all becomes an empty text. */
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
      frames = this.#start({ kind: 'call', index: call.index, arguments: '', isWhole: false }, block)
    }
    const open = this.#open
    // Only white space can follow whole arguments; their block may be closed by then.
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
    // In one piece: some clients join the pieces of a signature, others keep the last.
    const signature =
      open.kind === 'thinking' ? this.#delta({ type: 'signature_delta', signature: this.#vault.seal(open.text) }) : ''
    const stop = frame({ type: 'content_block_stop', index: this.#index })
    this.#open = undefined
    this.#index += 1
    return signature + stop
  }
}

const EMPTY_TEXT = { type: 'text', text: '' }

function isClosable(open: OpenBlock | undefined): boolean {
  if (open?.kind !== 'call') return true
  // Whole arguments stay whole, and what does not end like an object need not be parsed to know that it is none.
  open.isWhole ||= open.arguments.trimEnd().endsWith('}') && parseJsonObject(open.arguments) !== undefined
  return open.isWhole
}

/** The engine's own id, or one that no other call of the session has. */
export function callId(answerId: string, call: { id?: string; index: number }): string {
  return call.id || `toolu_${answerId}_${call.index}`
}

/** Clients of this API go by the `event:` line, not by the type in the data. */
export function frame(event: { type: string } & WireFields): string {
  return formatSse(JSON.stringify(event), event.type)
}
