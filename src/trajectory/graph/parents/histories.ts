import { sortedJson } from '../../../lib/json/json-text.ts'
import { SizedMap } from '../../../lib/collections/sized-map.ts'
import { textOf, type ContentPart, type Message } from '../../../model/message.ts'
import type { Turn, TurnRequest } from '../../../model/turn.ts'
import { Ancestry } from './ancestry.ts'
import type { RequestReader } from '../call-graph.ts'

/** A recorded request, small enough to be kept for every call: messages that mean the same have the same number. */
export interface History {
  /** Behind the system messages that stand in front of all others. */
  messages: readonly number[]
  /** How many stand in front. */
  leading: number
  /** Of the last message; undefined when there is none. */
  lastRole: Message['role'] | undefined
  system: number
  tools: number
  hasTools: boolean
  /** What else decides how a template writes a prompt: whether tools may be used, thinking. */
  setting: number
}

/**
 * Characters of the requests that are kept parsed; others are parsed again when they are looked at again. The last calls of
 * many conversations are looked at for each call that goes on from none.
 */
const CHARACTERS_KEPT = 16 * 1024 * 1024

/** The requests of one session, each read at most when it is asked for. One of these lives as long as a graph is made. */
export class Histories {
  readonly #reader: RequestReader
  readonly #requests = new SizedMap<{ request: TurnRequest | undefined }>(CHARACTERS_KEPT)
  #latest: { turn: Turn; request: TurnRequest | undefined } | undefined
  /** Of the session's calls. */
  readonly ancestry = new Ancestry()
  readonly #histories = new Map<string, History | undefined>()
  readonly #numbers = new Map<string, number>()
  /** The messages as they came, so that what they mean is worked out once for all requests that repeat them. */
  readonly #known = new Map<string, number>()
  readonly #answers = new Set<number>()

  constructor(reader: RequestReader) {
    this.#reader = reader
  }

  /** In our own words; undefined when this version cannot read it. */
  requestOf(turn: Turn): TurnRequest | undefined {
    const kept = this.#latest?.turn === turn ? this.#latest : this.#requests.get(turn.id)
    if (kept !== undefined) return kept.request
    const request = this.#reader.readRequest(turn)
    // Kept apart, since one request may be longer than all that are kept.
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

  /** A message by its place in `History.messages`. */
  message(turn: Turn, at: number): Message | undefined {
    const history = this.of(turn)
    return history === undefined ? undefined : this.requestOf(turn)?.messages[history.leading + at]
  }

  /** Whether an assistant message stands there; known without reading the request again. */
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
    // A text with the separator in it could only be taken for another message of the same words.
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

/** Claude Code writes a hash of the first prompt on the first line; the gateway takes that line out. */
const BILLING_LINE = /^x-anthropic-billing-header:[^\n]*\n?/

function systemText(messages: readonly Message[]): string {
  return messages.map(textOf).join('\n').replace(BILLING_LINE, '')
}

/** Not what harnesses change without meaning it: ids, parts, white space alone, and how JSON is printed. */
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

/** Equal for texts that are the same JSON but for white space, key order and how numbers and escapes are written. */
export function toSortedJson(text: string): string {
  return sortedJson(text) ?? text
}

/** How many leading numbers two histories share. */
export function sharedMessages(a: History, b: History): number {
  const most = Math.min(a.messages.length, b.messages.length)
  let same = 0
  while (same < most && a.messages[same] === b.messages[same]) same += 1
  return same
}
