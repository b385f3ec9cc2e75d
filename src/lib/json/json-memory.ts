import { commonPrefix } from '../collections/common-prefix.ts'
import { membersOf, skipElement } from './json-edit.ts'

/** A shorter common prefix is not worth the search. */
const MIN_SHARED_UNITS = 1024
/** Earlier texts that the next text may extend. */
const TEXTS_KEPT = 4
/** Length limit of all kept texts but the latest. */
const OLDER_UNITS_KEPT = 256 * 1024
/** Longer texts are not kept, to limit memory, and are parsed whole each time. */
const LONGEST_KEPT = 8 * 1024 * 1024

export interface ParsedJson {
  /** Must not be modified: it shares parts with other values. */
  value: unknown
  /** Elements that were added, if the rest is the same as before. */
  added?: readonly unknown[]
}

type JsonObject = Readonly<Record<string, unknown>>

/** A parsed object, with the positions of the elements of its longest list. */
interface Known {
  text: string
  value: JsonObject
  list?: ListPlace
}

interface ListPlace {
  name: string
  /** Start of each element. */
  starts: readonly number[]
  /** Position of the closing bracket. */
  close: number
}

/**
 * Parses JSON texts that mostly repeat an earlier text, as the calls of a conversation do: a list grows, and the text before
 * and after it stays the same. Only the added elements are parsed; the other objects are shared.
 *
 * Returns the same value as `JSON.parse`. Up to the comma before an element both texts are equal, so a parser is in the same
 * state, within the same list. The text up to the end of the list is parsed as a list. The rest of both texts is equal again.
 */
export class JsonMemory {
  /** Ordered by age, the latest last. */
  #known: Known[] = []

  /** Throws SyntaxError as `JSON.parse` does. */
  parse(text: string): ParsedJson {
    for (const known of this.#known.toReversed()) {
      const found = goOn(known, text)
      if (found === undefined) continue
      this.#known.splice(this.#known.indexOf(known), 1)
      if (text.length <= LONGEST_KEPT) this.#keep(found.known)
      return { value: found.known.value, added: found.added }
    }
    const value: unknown = JSON.parse(text)
    const isKept = text.length >= MIN_SHARED_UNITS && text.length <= LONGEST_KEPT
    if (isKept && isObject(value)) this.#keep({ text, value })
    return { value }
  }

  /** Nothing goes on from a text that its reader would not have. */
  forget(text: string): void {
    this.#known = this.#known.filter((known) => known.text !== text)
  }

  #keep(known: Known): void {
    this.#known.push(known)
    while (this.#known.length > TEXTS_KEPT || this.#olderUnits() > OLDER_UNITS_KEPT) this.#known.shift()
  }

  #olderUnits(): number {
    return this.#known.slice(0, -1).reduce((sum, { text }) => sum + text.length, 0)
  }
}

function goOn(known: Known, text: string): { known: Known; added: readonly unknown[] } | undefined {
  const shared = commonPrefix(known.text, text)
  if (shared < MIN_SHARED_UNITS) return undefined
  known.list ??= findList(known)
  const { name, starts, close } = known.list
  const keep = starts.findLastIndex((start) => start <= shared)
  if (keep < 1) return undefined
  const from = starts[keep] as number
  const end = close + text.length - known.text.length
  if (end < from || text.slice(end) !== known.text.slice(close)) return undefined
  // With a first element, so that a trailing comma remains an error.
  const added = parseList(`[0,${text.slice(from, end)}]`)?.slice(1)
  if (added === undefined) return undefined
  const before = (known.value[name] as readonly unknown[]).slice(0, keep)
  const value = { ...known.value, [name]: [...before, ...added] }
  const list = { name, starts: [...starts.slice(0, keep), ...startsOf(text, from)], close: end }
  return { known: { text, value, list }, added }
}

function parseList(text: string): unknown[] | undefined {
  try {
    return JSON.parse(text) as unknown[]
  } catch {
    return undefined
  }
}

/** Undefined for a list without elements, and for an object with a duplicate name, of which only the last counts. */
function findList({ text, value }: Known): ListPlace {
  const members = membersOf(text)
  const names = new Set(members.map(({ name }) => name))
  const [longest] = members
    .filter(({ name }) => Array.isArray(value[name]) && (value[name] as unknown[]).length > 0)
    .toSorted((one, other) => other.end - other.start - (one.end - one.start))
  if (longest === undefined || names.size < members.length) return { name: '', starts: [], close: 0 }
  return { name: longest.name, starts: startsOf(text, longest.start + 1), close: longest.end - 1 }
}

/** Returns the starts of the elements from `from` to the end of their list. */
function startsOf(text: string, from: number): number[] {
  const starts: number[] = []
  for (let at: number | undefined = from; at !== undefined;) {
    const element = skipElement(text, at)
    starts.push(element.start)
    at = element.next
  }
  return starts
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
