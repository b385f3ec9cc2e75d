import type { DeltaEvent, WireEvent, WireFields } from '../../../wire-event.ts'
import type { ByteJoiner } from './byte-joiner.ts'
import { cutNumbers, sliceBytes, type CutAnswer } from './cut-numbers.ts'
import type { PromptIdCache } from './prompt-id-cache.ts'

/**
 * The byte readers of this folder, and the only file of it that other folders import. The readers spare `JSON.parse` for
 * the ids and log probabilities of an answer in vLLM's format, which are most of its bytes. They are optional: the reader
 * in `chat-answer.ts` defines what an answer means, runs for every byte that a fast reader does not accept, and gives
 * the same events. The tests beside this file compare both.
 *
 * - A whole answer: `readFastAnswer`, once.
 * - A stream: `FastChunks` for every piece of network data. It reads the chunks that only add tokens.
 * - A chunk of a stream that carries a long prompt: `readPromptChunk`.
 */
export { ByteJoiner } from './byte-joiner.ts'
export { FastChunks } from './fast-chunks.ts'
export { PromptIdCache } from './prompt-id-cache.ts'

/** State that the readers keep between answers, to save work. It does not change what they read. */
export interface FastReading {
  /** One for each session. */
  promptIdCache: PromptIdCache
  /** One for each connection pool. */
  joiner: ByteJoiner
}

/**
 * Returns the events of a whole answer. `toEvents` reads the answer without its long lists; the lists are added here, as
 * numbers and as bytes of the wire. Undefined when the answer contains no list in vLLM's format.
 */
export function readFastAnswer(
  pieces: readonly Buffer[],
  { promptIdCache, joiner }: FastReading,
  toEvents: (answer: WireFields) => WireEvent[],
): WireEvent[] | undefined {
  const cut = cutNumbers(joiner.join(pieces), promptIdCache)
  if (cut === undefined) return undefined
  const choices = cut.choices.values()
  return toEvents(cut.value).map((event) => {
    if (event.type === 'answer-start' && cut.promptIds !== undefined) {
      const { numbers, start, end } = cut.promptIds
      return { ...event, promptTokenIds: numbers, promptTokenBytes: sliceBytes(pieces, start, end) }
    }
    return event.type === 'choice-delta' ? withLists(event, choices.next().value ?? {}, pieces) : event
  })
}

function withLists(
  event: DeltaEvent,
  { ids, logprobs }: CutAnswer['choices'][number],
  pieces: readonly Buffer[],
): DeltaEvent {
  const wire = { ...event.wire }
  const unread: Record<string, unknown> = {}
  if (ids !== undefined) {
    unread['token_ids'] = sliceBytes(pieces, ids.start, ids.end)
    defineLazily(wire, 'token_ids', () => Array.from(ids.numbers))
  }
  if (logprobs !== undefined) {
    const content = sliceBytes(pieces, logprobs.start, logprobs.end)
    const others = wire['logprobs'] as WireFields
    unread['logprobs'] = { ...others, content }
    defineLazily(wire, 'logprobs', () => ({ ...others, content: content.parse() }))
  }
  return { ...event, ids: ids?.numbers ?? event.ids, logprobs: logprobs?.numbers ?? event.logprobs, wire, unread }
}

/** Not enumerable, so that a spread of the other members does not parse this one. */
function defineLazily(fields: Record<string, unknown>, name: string, read: () => unknown): void {
  let value: unknown
  Object.defineProperty(fields, name, { get: () => (value ??= read()), enumerable: false, configurable: true })
}

const DATA = Buffer.from('data: ')
const LONG_EVENT_BYTES = 4096

/** Returns the chunk in a server-sent event that carries a long prompt and no tokens. Undefined for any other event. */
export function readPromptChunk(event: Buffer, { promptIdCache }: FastReading): WireFields | undefined {
  if (event.length < LONG_EVENT_BYTES || !isOneLine(event)) return undefined
  const cut = cutNumbers(event.subarray(DATA.length, event.length - 2), promptIdCache)
  if (cut?.promptIds === undefined || cut.choices.some(({ ids, logprobs }) => ids ?? logprobs)) return undefined
  return { ...cut.value, prompt_token_ids: cut.promptIds.numbers }
}

/** Whether an event, with the empty line that ends it, consists of one `data:` line. */
function isOneLine(event: Buffer): boolean {
  return event.indexOf(DATA) === 0 && event.indexOf(10) === event.length - 2
}
