import type { ByteJoiner } from './byte-joiner.ts'
import type { ChoiceDelta, StreamEvent, WireFields } from '../../../../model/stream-event.ts'
import { cutNumbers, sliceBytes, type CutAnswer } from './cut-numbers.ts'
import type { PromptMemory } from './prompt-memory.ts'

/** What spares a reader work; it reads the same without. */
export interface FastReading {
  memory: PromptMemory
  joiner: ByteJoiner
}

/**
 * The events of a whole answer, by way of `toEvents` for all of it but its long lists. Undefined when it has none in the
 * form we know. What the lists held on the wire can be had from the events still, as bytes and as values.
 */
export function readFast(
  pieces: readonly Buffer[],
  { memory, joiner }: FastReading,
  toEvents: (answer: WireFields) => StreamEvent[],
): StreamEvent[] | undefined {
  const cut = cutNumbers(joiner.join(pieces), memory)
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
  event: ChoiceDelta,
  { ids, logprobs }: CutAnswer['choices'][number],
  pieces: readonly Buffer[],
): ChoiceDelta {
  const wire = { ...event.wire }
  const unread: Record<string, unknown> = {}
  if (ids !== undefined) {
    unread['token_ids'] = sliceBytes(pieces, ids.start, ids.end)
    readLater(wire, 'token_ids', () => Array.from(ids.numbers))
  }
  if (logprobs !== undefined) {
    const content = sliceBytes(pieces, logprobs.start, logprobs.end)
    const others = wire['logprobs'] as WireFields
    unread['logprobs'] = { ...others, content }
    readLater(wire, 'logprobs', () => ({ ...others, content: content.parse() }))
  }
  return {
    ...event,
    ...(ids === undefined ? {} : { ids: ids.numbers }),
    ...(logprobs === undefined ? {} : { logprobs: logprobs.numbers }),
    wire,
    unread,
  }
}

/** Not enumerable, so that whoever passes on all other members does not read it in passing. */
function readLater(fields: Record<string, unknown>, name: string, read: () => unknown): void {
  let value: unknown
  Object.defineProperty(fields, name, { get: () => (value ??= read()), enumerable: false, configurable: true })
}
