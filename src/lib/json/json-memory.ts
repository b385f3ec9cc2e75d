import { commonPrefix } from '../collections/common-prefix.ts'
import { membersOf, skipElement } from './json-edit.ts'

/** Less in common is not worth the search. */
const MIN_SHARED_UNITS = 1024
/** Texts that the next one may go on from: a conversation, and those held beside it. */
const TEXTS_KEPT = 4
/** Of all but the latest. */
const OLDER_UNITS_KEPT = 256 * 1024
/** Longer texts are parsed whole each time: they would hold memory as long as the conversation. */
const LONGEST_KEPT = 8 * 1024 * 1024

export interface ParsedJson {
  /** Not to be written to: parts of it are parts of other values. */
  value: unknown
  /** Elements that were not there before, when all else was. */
  added?: readonly unknown[]
}

type JsonObject = Readonly<Record<string, unknown>>

/** An object that was parsed, and where the elements of its longest list stand. */
interface Known {
  text: string
  value: JsonObject
  list?: ListPlace
}

interface ListPlace {
  name: string
  /** Where each element begins. */
  starts: readonly number[]
  /** The closing bracket. */
  close: number
}

/**
 * Parses JSON texts of which each repeats most of an earlier one, as the calls of a conversation do: a list that grows,
 * and the same before and behind it. Only what was added is parsed; the rest is the very same objects.
 *
 * Gives what `JSON.parse` would. Up to the comma before an element both texts are equal, so a parser has read the same and
 * stands in the same list. What follows up to the other end of the list is parsed as a list. From there on both texts are
 * equal again, and so is what the parser does.
 */
export class JsonMemory {
  /** The latest last. */
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
  // With an element before, so that a comma without one behind it stays an error.
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

/** Nothing goes on from a list without elements. Nor where a name occurs twice, since only the last of both counts. */
function findList({ text, value }: Known): ListPlace {
  const members = membersOf(text)
  const names = new Set(members.map(({ name }) => name))
  const [longest] = members
    .filter(({ name }) => Array.isArray(value[name]) && (value[name] as unknown[]).length > 0)
    .toSorted((one, other) => other.end - other.start - (one.end - one.start))
  if (longest === undefined || names.size < members.length) return { name: '', starts: [], close: 0 }
  return { name: longest.name, starts: startsOf(text, longest.start + 1), close: longest.end - 1 }
}

/** Where the elements begin that stand from `from` on up to the end of their list. */
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
