import type { WireEvent } from '../../../wire-event.ts'
import { ChunkPattern, type ReadTokens, type TokenRun } from './chunk-pattern.ts'
import { toSource, type Source } from './scan-bytes.ts'

/** Forms of chunks in one stream: text, reasoning and tool arguments, perhaps of several choices. */
const MOST_PATTERNS = 8
/** Events without a usable form, after which the stream is no longer searched for forms. */
const MOST_MISSES = 64
const LARGEST_EVENT_BYTES = 16 * 1024 * 1024

/** The reference reader. `isEvent`: the bytes are one complete event. Returns whether the stream may continue. */
export type ReadRest = (bytes: Buffer, isEvent: boolean) => boolean

/**
 * Reads the chunks of a stream that only add tokens, and passes all other events to the reference reader one at a time.
 * Both readers give the same events, so the result does not depend on how the network cut the bytes.
 */
export class FastChunks {
  readonly #read: ReadTokens
  #patterns: readonly ChunkPattern[] = []
  #misses = 0
  /** The beginning of an event whose end has not arrived. */
  #pending: Buffer[] = []
  #pendingBytes = 0
  #isOff = false

  constructor(read: ReadTokens) {
    this.#read = read
  }

  /** `bytes` must not change afterwards. */
  push(bytes: Buffer, events: WireEvent[], readRest: ReadRest): void {
    if (bytes.length === 0) return
    // The standard allows three kinds of line end. Engines use line feeds; a stream with others is not read fast.
    if (this.#isOff || bytes.includes(CARRIAGE_RETURN)) {
      this.#isOff = true
      const all = [...this.#pending, bytes]
      this.#pending = []
      for (const piece of all) if (!readRest(piece, false)) return
      return
    }
    const at = this.#pendingBytes === 0 ? 0 : this.#endOfPending(bytes)
    if (at === -1) {
      this.#keep(bytes)
      return
    }
    if (this.#pendingBytes > 0) {
      const event = Buffer.concat([...this.#pending, bytes.subarray(0, at)])
      this.#pending = []
      this.#pendingBytes = 0
      if (!this.#readAll(event, 0, events, readRest)) return
    }
    if (at < bytes.length) this.#readAll(bytes, at, events, readRest)
  }

  #readAll(bytes: Buffer, from: number, events: WireEvent[], readRest: ReadRest): boolean {
    const source = toSource(bytes)
    let latin1 = ''
    for (let at = from; at < bytes.length;) {
      if (latin1 === '' && this.#patterns.length > 0) latin1 = bytes.toString('latin1')
      const run = this.#match(source, latin1, at)
      if (run !== undefined) {
        events.push(run)
        at = run.end
        continue
      }
      const end = bytes.indexOf(END_OF_EVENT, at)
      if (end === -1) {
        this.#keep(bytes.subarray(at))
        return true
      }
      const event = bytes.subarray(at, end + END_OF_EVENT.length)
      if (!readRest(event, true)) return false
      this.#learn(event)
      at += event.length
    }
    return true
  }

  #match(source: Source, latin1: string, at: number): TokenRun | undefined {
    for (const pattern of this.#patterns) {
      const run = pattern.match(source, latin1, at)
      if (run !== undefined) return run
    }
    return undefined
  }

  #learn(event: Buffer): void {
    if (this.#misses === MOST_MISSES || this.#patterns.length === MOST_PATTERNS) return
    const pattern = ChunkPattern.learn(event, this.#read)
    if (pattern === undefined) this.#misses += 1
    else this.#patterns = [pattern, ...this.#patterns]
  }

  #keep(bytes: Buffer): void {
    this.#pending.push(bytes)
    this.#pendingBytes += bytes.length
    if (this.#pendingBytes > LARGEST_EVENT_BYTES) this.#isOff = true
  }

  /** Returns the position in `bytes` behind the end of the pending event; -1 when its end has not arrived. */
  #endOfPending(bytes: Buffer): number {
    if (bytes[0] === LINE_FEED && this.#pending.at(-1)?.at(-1) === LINE_FEED) return 1
    const end = bytes.indexOf(END_OF_EVENT)
    return end === -1 ? -1 : end + END_OF_EVENT.length
  }
}

const LINE_FEED = 10
const CARRIAGE_RETURN = 13
const END_OF_EVENT = Buffer.from('\n\n')
