import type { EngineContext } from './context.ts'
import type { EngineError } from './errors.ts'
import type { EventWriter } from './event-stream.ts'
import type { Exchange } from './exchange.ts'
import type { Policy } from './policies/policy.ts'

export type JsonObject = Readonly<Record<string, unknown>>

export interface Route {
  method: 'GET' | 'POST'
  /** Answers without a key: says nothing about anyone. */
  isOpen?: boolean
  handle(context: EngineContext, exchange: Exchange): Promise<void>
}

/**
 * Whose HTTP API the engine speaks. Inside, everything is said in vLLM's words; a wire says how another engine, or an
 * older version, puts it, and what it gets wrong. As far as the gateway's adapters need it.
 */
export interface Wire {
  /** Whether it has this path of vLLM's newest. */
  serves(path: string): boolean
  /** Paths of its own; they come before those of vLLM. */
  readonly routes: ReadonlyMap<string, Route>
  readonly reasoningFields: readonly ('reasoning' | 'reasoning_content')[]
  /** In streams with tools, ids of what a parser holds back are lost. */
  readonly losesHeldIds: boolean
  /** An answer limit that does not fit beside the prompt is lowered, not refused. */
  readonly lowersMaxTokens: boolean
  /** A chat request in vLLM's words. Throws what this engine refuses. */
  toChatBody(body: unknown): unknown
  /** Absent: answers are vLLM's. */
  shape?(asked: JsonObject, context: EngineContext): Shape
  toModelCard(card: JsonObject): JsonObject
  toErrorBody: (error: EngineError) => string
  /** Where log probabilities mean something else. */
  wrapPolicy?(policy: Policy): Policy
}

/** Puts one answer into a wire's words. */
export interface Shape {
  answer(answer: JsonObject): JsonObject
  /** None: the wire says nothing. */
  chunk(chunk: JsonObject): JsonObject | undefined
  /** What comes after the last choice, before usage and `[DONE]`. */
  late?(): JsonObject | undefined
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The choices of an answer or a chunk in vLLM's words. */
export function choicesOf(answer: JsonObject): JsonObject[] {
  const { choices } = answer
  return Array.isArray(choices) ? choices.filter(isObject) : []
}

export function shapeAnswer(json: string, shape: Shape | undefined): string {
  return shape === undefined ? json : JSON.stringify(shape.answer(JSON.parse(json) as JsonObject))
}

/** A stream whose events are put into another wire's words on their way. What is no JSON stays as it is. */
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

/** Undefined for errors, which are in the wire's words already, and for what is broken on purpose. */
function readChunk(event: string): JsonObject | undefined {
  try {
    const chunk: unknown = JSON.parse(event.slice('data: '.length))
    return isObject(chunk) && Array.isArray(chunk['choices']) ? chunk : undefined
  } catch {
    return undefined
  }
}
