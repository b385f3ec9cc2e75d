import { readKey, skipSpace, skipValue } from './json-edit.ts'

/** The parts of a JSON value that are kept. `null` is allowed for every value. */
export type JsonShape =
  | { kind: 'any' }
  | { kind: 'scalar'; accepts?: (value: unknown) => boolean }
  | { kind: 'object'; members: Readonly<Record<string, JsonShape>> }
  | { kind: 'list'; items: JsonShape }
  | { kind: 'either'; of: readonly JsonShape[] }
  /** An object whose member `type` names its shape. `instead` is the JSON text for an unknown type; absent: dropped. */
  | { kind: 'tagged'; variants: Readonly<Record<string, JsonShape>>; instead?: (value: unknown) => string }

export interface KeptJson {
  text: string
  /** Paths of what was dropped, without list indexes: `messages[].vendor`. At most MAX_PATHS, in order of occurrence. */
  dropped: string[]
}

/** A hostile text may hold any number of names of any length. */
const MAX_PATHS = 32
const LONGEST_NAME = 64

/**
 * Keeps the parts of a JSON text that `shape` allows, byte for byte. `value` is the parsed text. A text with a duplicate name
 * in an object is printed again with the last value, because parsers disagree about which value counts.
 */
export function keepShape(text: string, value: unknown, shape: JsonShape): KeptJson {
  const walk = new Walk(text)
  walk.value(skipSpace(text, 0), value, shape, '')
  if (!walk.hasRepeatedName) return walk.result()
  const again = new Walk(JSON.stringify(value))
  again.value(0, value, shape, '')
  return again.result()
}

type Members = Readonly<Record<string, JsonShape>>

/** One pass over a text that collects the pieces to remove. */
class Walk {
  readonly #text: string
  /** In the order of the text, apart from each other. */
  readonly #cuts: Cut[] = []
  readonly #dropped = new Set<string>()
  hasRepeatedName = false

  constructor(text: string) {
    this.#text = text
  }

  result(): KeptJson {
    let text = ''
    let at = 0
    for (const { start, end, json } of this.#cuts) {
      text += this.#text.slice(at, start) + json
      at = end
    }
    return { text: text + this.#text.slice(at), dropped: [...this.#dropped] }
  }

  /** Returns the end of a value that is kept; undefined if it is dropped. `name` is its key below `path`. */
  value(start: number, value: unknown, shape: JsonShape, path: string, name = ''): number | undefined {
    const fitting = value === null ? ANY : fitOf(shape, value)
    if (fitting === undefined) return this.#drop(pathOf(path, name))
    switch (fitting.kind) {
      case 'any':
      case 'scalar':
      case 'either':
        return skipValue(this.#text, start)
      case 'object':
        return this.#members(start, value as Readonly<Record<string, unknown>>, fitting.members, pathOf(path, name))
      case 'list':
        return this.#elements(start, value as readonly unknown[], fitting.items, pathOf(path, name))
      case 'tagged': {
        this.#drop(`${pathOf(path, name)}{${shorten(typeOf(value) ?? 'no type')}}`)
        if (fitting.instead === undefined) return undefined
        const end = skipValue(this.#text, start)
        this.#cuts.push({ start, end, json: fitting.instead(value) })
        return end
      }
    }
  }

  #members(start: number, value: Readonly<Record<string, unknown>>, allowed: Members, path: string): number {
    const text = this.#text
    const first = skipSpace(text, start + 1)
    const run = new Run(first, this.#cuts)
    let count = 0
    let at = first
    while (text[at] !== '}') {
      const { name, valueStart } = readKey(text, at)
      count += 1
      const inner = Object.hasOwn(allowed, name) ? allowed[name] : undefined
      run.open(at)
      // The value of an earlier one of two equal names is another one than the text here says.
      const isOther = inner !== undefined && openingOf(value[name]) !== openingAt(text, valueStart)
      if (isOther) this.hasRepeatedName = true
      if (inner === undefined) this.#drop(pathOf(path, name))
      const end = inner === undefined || isOther ? undefined : this.value(valueStart, value[name], inner, path, name)
      at = skipSpace(text, run.close(end !== undefined, end ?? skipValue(text, valueStart)))
      if (text[at] === ',') at = skipSpace(text, at + 1)
    }
    run.end(at)
    if (count !== Object.keys(value).length) this.hasRepeatedName = true
    return at + 1
  }

  #elements(start: number, value: readonly unknown[], items: JsonShape, path: string): number {
    const text = this.#text
    const first = skipSpace(text, start + 1)
    const run = new Run(first, this.#cuts)
    let at = first
    for (let index = 0; text[at] !== ']'; index += 1) {
      run.open(at)
      const isOther = openingOf(value[index]) !== openingAt(text, at)
      if (isOther) this.hasRepeatedName = true
      const end = isOther ? undefined : this.value(at, value[index], items, path, '[]')
      at = skipSpace(text, run.close(end !== undefined, end ?? skipValue(text, at)))
      if (text[at] === ',') at = skipSpace(text, at + 1)
    }
    run.end(at)
    return at + 1
  }

  #drop(path: string): undefined {
    if (this.#dropped.size < MAX_PATHS) this.#dropped.add(path)
  }
}

interface Cut {
  start: number
  end: number
  json: string
}

/** The members of an object or the elements of a list. Each removed item is removed with one comma. */
class Run {
  readonly #cuts: Cut[]
  readonly #first: number
  #start = 0
  /** How many cuts there were before those inside the current one. */
  #cutsBefore = 0
  #previousEnd = 0
  #hasKept = false

  constructor(first: number, cuts: Cut[]) {
    this.#first = first
    this.#cuts = cuts
  }

  open(start: number): void {
    this.#start = start
    this.#cutsBefore = this.#cuts.length
  }

  /** Gives `end` back, for the reader to go on from. */
  close(isKept: boolean, end: number): number {
    if (isKept && !this.#hasKept) {
      // All items before it were removed.
      if (this.#start > this.#first) {
        this.#cuts.splice(this.#cutsBefore, 0, { start: this.#first, end: this.#start, json: '' })
      }
      this.#hasKept = true
    } else if (!isKept && this.#hasKept) {
      this.#cuts.push({ start: this.#previousEnd, end, json: '' })
    }
    this.#previousEnd = end
    return end
  }

  /** `closing` is where the bracket stands. */
  end(closing: number): void {
    if (!this.#hasKept && closing > this.#first) this.#cuts.push({ start: this.#first, end: closing, json: '' })
  }
}

const ANY: JsonShape = { kind: 'any' }

/** Returns the shape of a value; `tagged` if its type is unknown; undefined if the value is dropped. */
function fitOf(shape: JsonShape, value: unknown): JsonShape | undefined {
  switch (shape.kind) {
    case 'any':
      return shape
    case 'scalar':
      return typeof value !== 'object' && (shape.accepts?.(value) ?? true) ? shape : undefined
    case 'object':
      return openingOf(value) === '{' ? shape : undefined
    case 'list':
      return Array.isArray(value) ? shape : undefined
    case 'either':
      return shape.of.map((one) => fitOf(one, value)).find((one) => one !== undefined)
    case 'tagged': {
      if (openingOf(value) !== '{') return undefined
      const type = typeOf(value)
      return type !== undefined && Object.hasOwn(shape.variants, type) ? shape.variants[type] : shape
    }
  }
}

/** Returns the opening bracket of a value; undefined for a scalar. */
function openingOf(value: unknown): '{' | '[' | undefined {
  if (typeof value !== 'object' || value === null) return undefined
  return Array.isArray(value) ? '[' : '{'
}

function openingAt(text: string, at: number): '{' | '[' | undefined {
  const first = text[at]
  return first === '{' || first === '[' ? first : undefined
}

function typeOf(value: unknown): string | undefined {
  const { type } = value as { type?: unknown }
  return typeof type === 'string' ? type : undefined
}

function pathOf(path: string, name: string): string {
  if (path === '' || name === '' || name === '[]') return path + shorten(name)
  return `${path}.${shorten(name)}`
}

function shorten(name: string): string {
  return name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name
}
