import { textOf, type AssistantMessage, type ContentPart, type Message } from '../model/message.ts'
import type { Provenance, Span } from '../model/sample.ts'
import type { Turn, TurnRequest } from '../model/turn.ts'
import type { Part } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'
import type { AttributeContext } from './to-sample.ts'

/** What stands behind token ids. */
export interface TokenDecoder {
  /** Bytes of one token, which need not be whole characters; undefined for an id it does not know. */
  bytesOf(id: number): Uint8Array | undefined
  /** Whether the id is one that text does not become by itself, like an end of turn. */
  isSpecial(id: number): boolean
}

/**
 * Tells prompt tokens apart by finding the texts of the request in what the tokens spell. A text counts as found only
 * where it stands literally and in one possible way; around one that is not found, tokens stay `context`. What lies between
 * found texts is `template`, and so are tool definitions: the template writes them in a form of its own. A token that is
 * partly a message and partly template belongs to the message.
 *
 * Without a decoder the one role that all new messages have is all that can be told.
 */
export function createAttribution(decoder: TokenDecoder | undefined, reader: RequestReader): AttributeContext {
  const counts = new WeakMap<Turn, number>()
  const read = (call: CallNode): TurnRequest | undefined => {
    const request = reader.readRequest(call.turn)
    if (request !== undefined) counts.set(call.turn, request.messages.length)
    return request
  }
  // Requests are large, and every call but the last is asked about twice.
  const countOf = (call: CallNode): number | undefined => counts.get(call.turn) ?? read(call)?.messages.length
  const provenance = new MessageProvenance()
  const attribute: AttributeContext = (part, before) => {
    const added = newMessages(read(part.call), before, countOf)
    if (added === undefined) return [{ from: 0, provenance: 'context' }]
    if (decoder === undefined) return [{ from: 0, provenance: onlyRole(added, part.call, provenance) }]
    const text = spell(part, decoder)
    return toSpans(text, placeAll(toPieces(added.messages, part.call, provenance), text.bytes))
  }
  // With one row per call, each prompt holds the parts of all calls before it.
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
  /** Written by the template among these messages, as far as the request tells. */
  hasTools: boolean
}

/** What the request says more than the one before; undefined where that cannot be told. */
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

/** The answer came back as one assistant message, or as several in a row. */
function answerEnd({ messages }: TurnRequest, from: number): number {
  const end = messages.findIndex(({ role }, i) => i >= from && role !== 'assistant')
  return end === -1 ? messages.length : end
}

function onlyRole({ messages, hasTools }: Added, call: CallNode, provenance: MessageProvenance): Provenance {
  const roles = new Set(messages.map((message) => provenance.of(message, call)))
  const [role, ...others] = roles
  return role === undefined || others.length > 0 || hasTools ? 'context' : role
}

/** Where the messages of a request come from. Remembers what was said before the call that was asked about last. */
class MessageProvenance {
  readonly #gists = new WeakMap<CallNode, string>()
  #said: { call: CallNode; gists: ReadonlySet<string> } | undefined

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
        // Sampled in a recorded call, but written anew here: neither what the policy chose nor someone else's words.
        return this.#saidBefore(call).has(gistOf(message)) ? 'context' : 'injected'
    }
  }

  #saidBefore(call: CallNode): ReadonlySet<string> {
    if (this.#said?.call === call) return this.#said.gists
    const gists = new Set<string>()
    for (let node = origin(call); node !== undefined; node = origin(node)) gists.add(this.#gistOf(node))
    this.#said = { call, gists }
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

/** Without arguments, which harnesses print anew. */
function gistOf(message: AssistantMessage): string {
  return JSON.stringify([textOf(message), ...message.toolCalls.map(({ name }) => name)])
}

function origin({ edge }: CallNode): CallNode | undefined {
  if (edge.verdict === 'root') return undefined
  return edge.verdict === 'exact' ? edge.parent : edge.from
}

// --- where they stand ------------------------------------------------------------------------------------------------

/** A text of a message that the prompt should hold, and where it does: absent while or when nobody knows. */
interface Piece {
  /** Undefined for what no template writes literally: an image, a tool call. */
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

/** Searches over the whole text that are paid for. Each found text halves the gaps, so it takes few if any are found. */
const SEARCHES = 64

/** Longest first: a long text has one place, and leaves a short one only the gap between its neighbours. */
function placeAll(pieces: Piece[], bytes: Buffer): Piece[] {
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
    // The same text twice is no riddle if it stands there exactly as often as it was said.
    const same = pieces.slice(gap.first, gap.last + 1).filter((other) => other.bytes?.equals(piece.bytes as Buffer))
    const places = findPlaces(bytes, piece.bytes, gap, same.length)
    if (places === undefined) continue
    for (const [i, other] of same.entries()) other.at = places[i] as number
  }
  return pieces
}

/** 0 to `count` - 1, the middle first and then the middles of what is left: in this order every find halves a gap. */
function scattered(count: number): number[] {
  const order: number[] = []
  const ranges: { from: number; to: number }[] = [{ from: 0, to: count }]
  // Grows while it is read.
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
  /** Pieces between the two nearest that are placed, and the bytes between those. */
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

/** All places of a text in the gap, overlapping ones too; undefined unless there are exactly `count`. */
function findPlaces(bytes: Buffer, text: Buffer, { from, to }: Gap, count: number): number[] | undefined {
  const gap = bytes.subarray(from, to)
  const places: number[] = []
  for (let at = gap.indexOf(text); at !== -1; at = gap.indexOf(text, at + 1)) {
    if (places.length === count) return undefined
    places.push(from + at)
  }
  const overlap = places.some((at, i) => i > 0 && at < (places[i - 1] as number) + text.length)
  return places.length === count && !overlap ? places : undefined
}

// --- tokens ----------------------------------------------------------------------------------------------------------

interface Spelt {
  bytes: Buffer
  /** Where each token begins in them, and behind the last. */
  offsets: Int32Array
}

/** Never part of UTF-8, so no text is found across it. */
const UNKNOWN = Uint8Array.of(0xff)

function spell({ ids }: Pick<Part, 'ids'>, decoder: TokenDecoder): Spelt {
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

function toSpans({ bytes, offsets }: Spelt, pieces: readonly Piece[]): Span[] {
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

/** The found texts and what lies between, without gaps. */
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

/** Of a token that ends at `end` and begins in the first of the stretches: a message's before the template's. */
function provenanceAt(stretches: readonly Stretch[], first: number, end: number): Provenance {
  let found: Provenance = stretches[first]?.provenance ?? 'template'
  for (let i = first + 1; i < stretches.length && (stretches[i]?.from ?? 0) < end; i++) {
    const next = stretches[i]?.provenance ?? 'template'
    if (found === 'template') found = next
    else if (next !== 'template' && next !== found) found = 'context'
  }
  return found
}
