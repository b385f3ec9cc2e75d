import { sortedJson } from '../../../lib/json/json-text.ts'
import { SizedMap } from '../../../lib/collections/sized-map.ts'
import { textOf, type ContentPart, type Message } from '../../../model/message.ts'
import type { Turn, TurnRequest } from '../../../model/turn.ts'
import { Ancestry } from './ancestry.ts'
import type { RequestReader } from '../call-graph.ts'

/** Compact form of a recorded request, kept for every call. Equivalent messages have the same number. */
export interface History {
  /** The messages behind the leading system messages. */
  messages: readonly number[]
  /** Number of leading system messages. */
  leading: number
  /** Role of the last message; undefined if there is none. */
  lastRole: Message['role'] | undefined
  system: number
  tools: number
  hasTools: boolean
  /** Other input of the chat template: whether tools may be used, thinking. */
  setting: number
}

/**
 * Cache size for parsed requests, in characters of their JSON. Evicted requests are parsed again. Each call without a parent
 * is compared with the last calls of many conversations.
 */
const CHARACTERS_KEPT = 16 * 1024 * 1024

/** Parses the requests of one session on demand. Used while one graph is built. */
export class Histories {
  readonly #reader: RequestReader
  readonly #requests = new SizedMap<{ request: TurnRequest | undefined }>(CHARACTERS_KEPT)
  #latest: { turn: Turn; request: TurnRequest | undefined } | undefined
  readonly ancestry = new Ancestry()
  readonly #histories = new Map<string, History | undefined>()
  readonly #numbers = new Map<string, number>()
  /** Numbers by the raw message, so that a repeated message is normalised once. */
  readonly #known = new Map<string, number>()
  readonly #answers = new Set<number>()

  constructor(reader: RequestReader) {
    this.#reader = reader
  }

  /** Returns the normalised request; undefined if this version cannot parse it. */
  requestOf(turn: Turn): TurnRequest | undefined {
    const kept = this.#latest?.turn === turn ? this.#latest : this.#requests.get(turn.id)
    if (kept !== undefined) return kept.request
    const request = this.#reader.readRequest(turn)
    // Kept separately: one request may be larger than the cache.
    this.#latest = { turn, request }
    this.#requests.set(turn.id, { request }, turn.request.length)
    return request
  }

  of(turn: Turn): History | undefined {
    if (this.#histories.has(turn.id)) return this.#histories.get(turn.id)
    const request = this.requestOf(turn)
    const history = request && this.#toHistory(request)
    this.#histories.set(turn.id, history)
    return history
  }

  /** Returns a message by its index in `History.messages`. */
  message(turn: Turn, at: number): Message | undefined {
    const history = this.of(turn)
    return history === undefined ? undefined : this.requestOf(turn)?.messages[history.leading + at]
  }

  /** Whether the message is an assistant message. Does not parse the request again. */
  isAnswer(turn: Turn, at: number): boolean {
    const number = this.of(turn)?.messages[at]
    return number !== undefined && this.#answers.has(number)
  }

  #toHistory(request: TurnRequest): History {
    const { messages, tools, toolChoice, reasoning, wire } = request
    const leading = leadingSystem(messages)
    return {
      messages: messages.slice(leading).map((message) => this.#numberOfMessage(message)),
      leading,
      lastRole: messages.at(-1)?.role,
      system: this.#numberOf(['system', systemText(messages.slice(0, leading))]),
      tools: this.#numberOf(['tools', tools]),
      hasTools: tools.length > 0,
      setting: this.#numberOf([toolChoice === 'none', reasoning ?? null, wire.body['chat_template_kwargs'] ?? null]),
    }
  }

  #numberOfMessage(message: Message): number {
    const calls = message.role === 'assistant' ? message.toolCalls : []
    const words = [message.role, textOf(message), ...calls.flatMap(({ name, arguments: args }) => [name, args])]
    const media = message.content.filter(isNotText)
    // A text that contains the separator can only collide with a message of the same words.
    const key = [...words, media.length === 0 ? '' : JSON.stringify(media)].join('\0')
    const known = this.#known.get(key)
    if (known !== undefined) return known
    const number = this.#numberOf(meaningOf(message))
    this.#known.set(key, number)
    if (message.role === 'assistant') this.#answers.add(number)
    return number
  }

  #numberOf(value: unknown): number {
    const key = JSON.stringify(value)
    const number = this.#numbers.get(key) ?? this.#numbers.size
    this.#numbers.set(key, number)
    return number
  }
}

function leadingSystem(messages: readonly Message[]): number {
  const first = messages.findIndex(({ role }) => role !== 'system' && role !== 'developer')
  return first === -1 ? messages.length : first
}

/** Claude Code writes a hash of the first prompt on the first line; the gateway removes that line. */
const BILLING_LINE = /^x-anthropic-billing-header:[^\n]*\n?/

function systemText(messages: readonly Message[]): string {
  return messages.map(textOf).join('\n').replace(BILLING_LINE, '')
}

/** Normalises a message. Drops what harnesses change without intent: ids, parts, blank text, JSON formatting. */
function meaningOf(message: Message): unknown {
  const text = textOf(message)
  const calls =
    message.role === 'assistant' ? message.toolCalls.map(({ name, arguments: args }) => [name, toSortedJson(args)]) : []
  const media = message.content.filter(isNotText)
  const role = message.role === 'developer' ? 'system' : message.role
  return [role, text.trim() === '' ? '' : text, calls, media]
}

function isNotText(part: ContentPart): boolean {
  return part.type !== 'text'
}

/** Returns equal texts for JSON that differs only in white space, key order and the notation of numbers and escapes. */
export function toSortedJson(text: string): string {
  return sortedJson(text) ?? text
}

/** Returns the number of leading messages that two histories share. */
export function sharedMessages(a: History, b: History): number {
  const most = Math.min(a.messages.length, b.messages.length)
  let same = 0
  while (same < most && a.messages[same] === b.messages[same]) same += 1
  return same
}
