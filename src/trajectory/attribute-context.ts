import { textOf, type AssistantMessage, type ContentPart, type Message } from '../model/message.ts'
import type { Provenance, Span } from '../model/sample.ts'
import type { Turn, TurnRequest } from '../model/turn.ts'
import type { Part } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'
import type { AttributeContext } from './to-sample.ts'

/** Decodes token ids to bytes. */
export interface TokenDecoder {
  /** Returns the bytes of one token, possibly a part of a character; undefined for an unknown id. */
  bytesOf(id: number): Uint8Array | undefined
  /** Whether no text is encoded to this id, such as an end of turn. */
  isSpecial(id: number): boolean
}

/**
 * Determines the provenance of prompt tokens: searches the texts of the request in the decoded prompt. A text counts as found
 * only if it occurs literally and unambiguously; tokens around a text that is not found stay `context`. Tokens between found
 * texts are `template`, as are tool definitions, which the template formats in its own way. A token that belongs partly to a
 * message and partly to the template counts as the message's.
 *
 * Without a decoder, only a role that all new messages share can be determined.
 */
export function createAttribution(decoder: TokenDecoder | undefined, reader: RequestReader): AttributeContext {
  const counts = new WeakMap<Turn, number>()
  const read = (call: CallNode): TurnRequest | undefined => {
    const request = reader.readRequest(call.turn)
    if (request !== undefined) counts.set(call.turn, request.messages.length)
    return request
  }
  // Requests are large, and every call but the last is needed twice.
  const countOf = (call: CallNode): number | undefined => counts.get(call.turn) ?? read(call)?.messages.length
  const provenance = new MessageProvenance()
  const attribute: AttributeContext = (part, before) => {
    const added = newMessages(read(part.call), before, countOf)
    if (added === undefined) return [{ from: 0, provenance: 'context' }]
    if (decoder === undefined) return [{ from: 0, provenance: onlyRole(added, part.call, provenance) }]
    const text = decode(part, decoder)
    return toSpans(text, locateAll(toPieces(added.messages, part.call, provenance), text.bytes))
  }
  // With one row per call, each prompt contains the parts of all calls before it.
  const known = new WeakMap<CallNode, { before: CallNode | undefined; length: number; spans: Span[] }>()
  return (part, before) => {
    const found = known.get(part.call)
    if (found?.before === before && found?.length === part.ids.length) return found.spans
    const spans = attribute(part, before)
    known.set(part.call, { before, length: part.ids.length, spans })
    return spans
  }
}

// --- which messages --------------------------------------------------------------------------------------------------

interface Added {
  messages: readonly Message[]
  /** Whether the template also writes tool definitions. */
  hasTools: boolean
}

/** Returns the messages that the request before did not contain; undefined if they cannot be determined. */
function newMessages(
  request: TurnRequest | undefined,
  before: CallNode | undefined,
  countOf: (call: CallNode) => number | undefined,
): Added | undefined {
  if (request === undefined) return undefined
  if (before === undefined) return { messages: request.messages, hasTools: request.tools.length > 0 }
  const known = countOf(before)
  if (known === undefined || request.messages[known]?.role !== 'assistant') return undefined
  return { messages: request.messages.slice(answerEnd(request, known)), hasTools: false }
}

/** Returns the end of the repeated answer, which may be several consecutive assistant messages. */
function answerEnd({ messages }: TurnRequest, from: number): number {
  const end = messages.findIndex(({ role }, i) => i >= from && role !== 'assistant')
  return end === -1 ? messages.length : end
}

function onlyRole({ messages, hasTools }: Added, call: CallNode, provenance: MessageProvenance): Provenance {
  const roles = new Set(messages.map((message) => provenance.of(message, call)))
  const [role, ...others] = roles
  return role === undefined || others.length > 0 || hasTools ? 'context' : role
}

/** Determines the provenance of messages. Caches the answers before the latest call. */
class MessageProvenance {
  readonly #gists = new WeakMap<CallNode, string>()
  #answers: { call: CallNode; gists: ReadonlySet<string> } | undefined

  of(message: Message, call: CallNode): Provenance {
    switch (message.role) {
      case 'system':
      case 'developer':
        return 'system'
      case 'user':
        return 'user'
      case 'tool':
        return 'tool'
      case 'assistant':
        // Sampled in a recorded call, but rendered again here: neither the policy's tokens nor an injected text.
        return this.#answersBefore(call).has(gistOf(message)) ? 'context' : 'injected'
    }
  }

  #answersBefore(call: CallNode): ReadonlySet<string> {
    if (this.#answers?.call === call) return this.#answers.gists
    const gists = new Set<string>()
    for (let node = origin(call); node !== undefined; node = origin(node)) gists.add(this.#gistOf(node))
    this.#answers = { call, gists }
    return gists
  }

  #gistOf(node: CallNode): string {
    const known = this.#gists.get(node)
    if (known !== undefined) return known
    const gist = gistOf(node.choice.message)
    this.#gists.set(node, gist)
    return gist
  }
}

/** Key of an answer. Omits tool arguments, which harnesses reformat. */
function gistOf(message: AssistantMessage): string {
  return JSON.stringify([textOf(message), ...message.toolCalls.map(({ name }) => name)])
}

function origin({ edge }: CallNode): CallNode | undefined {
  if (edge.verdict === 'root') return undefined
  return edge.verdict === 'exact' ? edge.parent : edge.from
}

// --- positions --------------------------------------------------------------------------------------------------------

/** A text of a message and its position in the prompt; `at` is absent while the position is unknown. */
interface Piece {
  /** Undefined for content that templates do not write literally: an image, a tool call. */
  bytes: Buffer | undefined
  provenance: Provenance
  at?: number
}

function toPieces(messages: readonly Message[], call: CallNode, provenances: MessageProvenance): Piece[] {
  return messages.flatMap((message) => {
    const provenance = provenances.of(message, call)
    const texts = message.content.map(literalOf)
    if (message.role === 'assistant') {
      if (message.reasoning !== undefined) texts.unshift(message.reasoning)
      texts.push(...message.toolCalls.flatMap((toolCall) => [undefined, toolCall.arguments]))
    }
    return texts
      .filter((text) => text !== '')
      .map((text): Piece => ({ bytes: text === undefined ? undefined : Buffer.from(text), provenance }))
  })
}

function literalOf(part: ContentPart): string | undefined {
  return part.type === 'text' ? part.text : undefined
}

/** Search limit, in passes over the whole text. Each found text halves the gaps, so few passes are usually needed. */
const SEARCHES = 64

/**
 * Searches the longest text first: its position is unique and limits shorter texts to the gap between their neighbours.
 */
function locateAll(pieces: Piece[], bytes: Buffer): Piece[] {
  const order = scattered(pieces.length).toSorted((a, b) => lengthOf(pieces[b]) - lengthOf(pieces[a]))
  let left = bytes.length * SEARCHES
  let visits = pieces.length * SEARCHES
  for (const index of order) {
    const piece = pieces[index] as Piece
    if (piece.bytes === undefined || piece.at !== undefined) continue
    const gap = gapAround(pieces, index, bytes.length)
    left -= gap.to - gap.from
    visits -= gap.last - gap.first
    if (left < 0 || visits < 0) break
    // A repeated text is unambiguous if the gap contains it exactly as often as the messages do.
    const same = pieces.slice(gap.first, gap.last + 1).filter((other) => other.bytes?.equals(piece.bytes as Buffer))
    const positions = findPositions(bytes, piece.bytes, gap, same.length)
    if (positions === undefined) continue
    for (const [i, other] of same.entries()) other.at = positions[i] as number
  }
  return pieces
}

/** Returns 0 to `count` - 1, the middle first and then the middles of the rest: in this order each match halves a gap. */
function scattered(count: number): number[] {
  const order: number[] = []
  const ranges: { from: number; to: number }[] = [{ from: 0, to: count }]
  // The list grows during the iteration.
  for (const { from, to } of ranges) {
    if (from >= to) continue
    const middle = (from + to) >>> 1
    order.push(middle)
    ranges.push({ from, to: middle }, { from: middle + 1, to })
  }
  return order
}

function lengthOf(piece: Piece | undefined): number {
  return piece?.bytes?.length ?? 0
}

interface Gap {
  /** Pieces between the two nearest located pieces, and the bytes between them. */
  first: number
  last: number
  from: number
  to: number
}

function gapAround(pieces: readonly Piece[], index: number, length: number): Gap {
  let first = index
  while (first > 0 && pieces[first - 1]?.at === undefined) first -= 1
  let last = index
  while (last < pieces.length - 1 && pieces[last + 1]?.at === undefined) last += 1
  const left = pieces[first - 1]
  return { first, last, from: (left?.at ?? 0) + lengthOf(left), to: pieces[last + 1]?.at ?? length }
}

/** Returns all positions of a text in the gap; undefined unless there are exactly `count`, without overlaps. */
function findPositions(bytes: Buffer, text: Buffer, { from, to }: Gap, count: number): number[] | undefined {
  const gap = bytes.subarray(from, to)
  const positions: number[] = []
  for (let at = gap.indexOf(text); at !== -1; at = gap.indexOf(text, at + 1)) {
    if (positions.length === count) return undefined
    positions.push(from + at)
  }
  const overlap = positions.some((at, i) => i > 0 && at < (positions[i - 1] as number) + text.length)
  return positions.length === count && !overlap ? positions : undefined
}

// --- tokens ----------------------------------------------------------------------------------------------------------

interface DecodedPrompt {
  bytes: Buffer
  /** Start of each token in `bytes`, and the end of the last token. */
  offsets: Int32Array
}

/** A byte that UTF-8 never contains, so that no text is found across an unknown token. */
const UNKNOWN = Uint8Array.of(0xff)

function decode({ ids }: Pick<Part, 'ids'>, decoder: TokenDecoder): DecodedPrompt {
  const offsets = new Int32Array(ids.length + 1)
  const tokens = Array.from(ids, (id) => decoder.bytesOf(id) ?? UNKNOWN)
  let at = 0
  for (const [i, token] of tokens.entries()) {
    offsets[i] = at
    at += token.length
  }
  offsets[ids.length] = at
  return { bytes: Buffer.concat(tokens, at), offsets }
}

interface Stretch {
  from: number
  to: number
  provenance: Provenance
}

function toSpans({ bytes, offsets }: DecodedPrompt, pieces: readonly Piece[]): Span[] {
  const stretches = toStretches(pieces, bytes.length)
  const spans: Span[] = []
  let current = 0
  for (let token = 0; token < offsets.length - 1; token++) {
    const [start, end] = [offsets[token] as number, offsets[token + 1] as number]
    while (current < stretches.length - 1 && (stretches[current]?.to ?? 0) <= start) current += 1
    const provenance = provenanceAt(stretches, current, Math.max(end, start + 1))
    if (spans.at(-1)?.provenance !== provenance) spans.push({ from: token, provenance })
  }
  return spans
}

/** Returns the found texts and the stretches between them, without gaps. */
function toStretches(pieces: readonly Piece[], length: number): Stretch[] {
  const stretches: Stretch[] = []
  let at = 0
  let between: Provenance = 'template'
  for (const piece of pieces) {
    if (piece.at === undefined) {
      between = 'context'
      continue
    }
    if (piece.at > at) stretches.push({ from: at, to: piece.at, provenance: between })
    at = piece.at + lengthOf(piece)
    stretches.push({ from: piece.at, to: at, provenance: piece.provenance })
    between = 'template'
  }
  if (at < length) stretches.push({ from: at, to: length, provenance: between })
  return stretches
}

/**
 * Returns the provenance of a token that begins in stretch `first` and ends at `end`. Messages take precedence over the
 * template.
 */
function provenanceAt(stretches: readonly Stretch[], first: number, end: number): Provenance {
  let found: Provenance = stretches[first]?.provenance ?? 'template'
  for (let i = first + 1; i < stretches.length && (stretches[i]?.from ?? 0) < end; i++) {
    const next = stretches[i]?.provenance ?? 'template'
    if (found === 'template') found = next
    else if (next !== 'template' && next !== found) found = 'context'
  }
  return found
}
