import type { EngineContext } from './context.ts'
import type { EngineError } from './errors.ts'
import type { EventWriter } from './event-stream.ts'
import type { Exchange } from './exchange.ts'
import type { Policy } from './policies/policy.ts'

export type JsonObject = Readonly<Record<string, unknown>>

export interface Route {
  method: 'GET' | 'POST'
  /** Whether the endpoint needs no key. */
  isOpen?: boolean
  handle(context: EngineContext, exchange: Exchange): Promise<void>
}

/**
 * HTTP API of the engine. The internal format is vLLM's; a wire converts it to the format and the defects of another engine
 * or an older version, as far as the gateway's adapters need it.
 */
export interface Wire {
  /** Whether the wire has this path of the newest vLLM. */
  serves(path: string): boolean
  /** Additional paths; they take precedence over those of vLLM. */
  readonly routes: ReadonlyMap<string, Route>
  readonly reasoningFields: readonly ('reasoning' | 'reasoning_content')[]
  /** Whether streams with tools lose the ids of text that a parser holds back. */
  readonly losesHeldIds: boolean
  /** Whether a grammar masks the logits before log probabilities are computed. */
  readonly masksByGrammar: boolean
  /** Whether a token limit that does not fit is reduced instead of rejected. */
  readonly lowersMaxTokens: boolean
  /** Whether tool arguments that are no JSON object are read as `{}` instead of rejected. */
  readonly coercesArguments?: boolean
  /** Converts a chat request to vLLM's format. Throws what this engine rejects. */
  toChatBody(body: unknown): unknown
  /** Absent: answers have vLLM's format. */
  shape?(asked: JsonObject, context: EngineContext): Shape
  toModelCard(card: JsonObject): JsonObject
  toErrorBody: (error: EngineError) => string
  /** Converts log probabilities that have another meaning. */
  wrapPolicy?(policy: Policy): Policy
}

/** Converts one answer to the wire's format. */
export interface Shape {
  answer(answer: JsonObject): JsonObject
  /** Returns the chunks of the wire, possibly none. */
  chunk(chunk: JsonObject): JsonObject | undefined
  /** Yields chunks after the last choice, before usage and `[DONE]`. */
  late?(): JsonObject | undefined
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The choices of an answer or a chunk in vLLM's format. */
export function choicesOf(answer: JsonObject): JsonObject[] {
  const { choices } = answer
  return Array.isArray(choices) ? choices.filter(isObject) : []
}

export function shapeAnswer(json: string, shape: Shape | undefined): string {
  return shape === undefined ? json : JSON.stringify(shape.answer(JSON.parse(json) as JsonObject))
}

/** Converts the events of a stream to another wire's format. Leaves text that is not JSON unchanged. */
export class ShapedStream implements EventWriter {
  readonly #stream: EventWriter
  readonly #shape: Shape
  #wasLate = false

  constructor(stream: EventWriter, shape: Shape) {
    this.#stream = stream
    this.#shape = shape
  }

  write(events: string): void {
    const shaped = this.#shaped(events)
    if (shaped !== '') this.#stream.write(shaped)
  }

  ready(): Promise<void> | undefined {
    return this.#stream.ready()
  }

  flushed(): Promise<void> {
    return this.#stream.flushed()
  }

  end(events = ''): void {
    this.#stream.end(this.#shaped(events))
  }

  destroy(): void {
    this.#stream.destroy()
  }

  #shaped(events: string): string {
    return events
      .split('\n\n')
      .filter((event) => event !== '')
      .map((event) => this.#shapedEvent(event))
      .join('')
  }

  #shapedEvent(event: string): string {
    if (event === 'data: [DONE]') return `${this.#late()}${event}\n\n`
    const chunk = readChunk(event)
    if (chunk === undefined) return `${event}\n\n`
    const late = choicesOf(chunk).length === 0 ? this.#late() : ''
    return late + print(this.#shape.chunk(chunk))
  }

  #late(): string {
    if (this.#wasLate) return ''
    this.#wasLate = true
    return print(this.#shape.late?.())
  }
}

function print(chunk: JsonObject | undefined): string {
  return chunk === undefined ? '' : `data: ${JSON.stringify(chunk)}\n\n`
}

/** Undefined for errors, which already have the wire's format, and for intended faults. */
function readChunk(event: string): JsonObject | undefined {
  try {
    const chunk: unknown = JSON.parse(event.slice('data: '.length))
    return isObject(chunk) && Array.isArray(chunk['choices']) ? chunk : undefined
  } catch {
    return undefined
  }
}
