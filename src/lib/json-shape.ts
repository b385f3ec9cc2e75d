import { eachElement, eachMember, skipSpace } from './json-edit.ts'

/** The parts of a JSON value that may stay. `null` may stand for every value. */
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
  /** Paths of what was dropped, list indexes left out: `messages[].vendor`. At most MOST_PATHS, in order of occurrence. */
  dropped: string[]
}

/** A hostile text may hold any number of names of any length. */
const MOST_PATHS = 32
const LONGEST_NAME = 64

/**
 * Keeps what `shape` allows of a JSON text. Every value that stays keeps its bytes. A member that occurs twice is kept once,
 * with its last value, because readers disagree about which one counts. `value` is what `JSON.parse` makes of `text`.
 */
export function keepShape(text: string, value: unknown, shape: JsonShape): KeptJson {
  const paths = new Set<string>()
  const start = skipSpace(text, 0)
  const kept = keepValue({ text, drop: (path) => void (paths.size < MOST_PATHS && paths.add(path)) }, start, value, {
    shape,
    path: '',
  })
  return { text: kept === undefined ? 'null' : (kept.json ?? text), dropped: [...paths] }
}

interface Reading {
  text: string
  drop: (path: string) => void
}

interface Place {
  shape: JsonShape
  path: string
}

/** A value that stays. `json` is its new text; absent: it is unchanged. */
interface Kept {
  json?: string
}

const UNCHANGED: Kept = {}

/** Undefined when the value is dropped; its path is noted then. */
function keepValue(reading: Reading, start: number, value: unknown, { shape, path }: Place): Kept | undefined {
  const fitting = value === null ? ANY : fitOf(shape, value)
  if (fitting === undefined) {
    reading.drop(path)
    return undefined
  }
  switch (fitting.kind) {
    case 'any':
    case 'scalar':
    case 'either':
      return UNCHANGED
    case 'object':
      return keepMembers(reading, start, value as Readonly<Record<string, unknown>>, { shape: fitting, path })
    case 'list':
      return keepElements(reading, start, value as readonly unknown[], { shape: fitting, path })
    case 'tagged':
      reading.drop(`${path}{${nameOf(typeOf(value) ?? 'no type')}}`)
      return fitting.instead === undefined ? undefined : { json: fitting.instead(value) }
  }
}

const ANY: JsonShape = { kind: 'any' }

/** The shape that holds for a value; `tagged` when its type is unknown; undefined when the value may not stay. */
function fitOf(shape: JsonShape, value: unknown): JsonShape | undefined {
  switch (shape.kind) {
    case 'any':
      return shape
    case 'scalar':
      return typeof value !== 'object' && (shape.accepts?.(value) ?? true) ? shape : undefined
    case 'object':
      return isObject(value) ? shape : undefined
    case 'list':
      return Array.isArray(value) ? shape : undefined
    case 'either':
      return shape.of.map((one) => fitOf(one, value)).find((one) => one !== undefined)
    case 'tagged': {
      if (!isObject(value)) return undefined
      const type = typeOf(value)
      return type !== undefined && Object.hasOwn(shape.variants, type) ? shape.variants[type] : shape
    }
  }
}

function keepMembers(
  reading: Reading,
  start: number,
  value: Readonly<Record<string, unknown>>,
  { shape, path }: Place & { shape: Extract<JsonShape, { kind: 'object' }> },
): Kept {
  const { text } = reading
  const places = new Map<string, { key: number; value: number; end: number }>()
  let count = 0
  eachMember(text, start, (name, valueStart, end, key) => {
    count += 1
    places.set(name, { key, value: valueStart, end })
  })
  let isChanged = places.size < count
  const members: string[] = []
  for (const [name, at] of places) {
    const inner = `${path}${path === '' ? '' : '.'}${nameOf(name)}`
    const allowed = Object.hasOwn(shape.members, name) ? shape.members[name] : undefined
    if (allowed === undefined) reading.drop(inner)
    const kept = allowed && keepValue(reading, at.value, value[name], { shape: allowed, path: inner })
    if (kept === undefined || kept.json !== undefined) isChanged = true
    if (kept === undefined) continue
    members.push(text.slice(at.key, at.value) + (kept.json ?? text.slice(at.value, at.end)))
  }
  return isChanged ? { json: `{${members.join(',')}}` } : UNCHANGED
}

function keepElements(
  reading: Reading,
  start: number,
  value: readonly unknown[],
  { shape, path }: Place & { shape: Extract<JsonShape, { kind: 'list' }> },
): Kept {
  let isChanged = false
  const elements: string[] = []
  eachElement(reading.text, start, (at, end, index) => {
    const kept = keepValue(reading, at, value[index], { shape: shape.items, path: `${path}[]` })
    if (kept === undefined || kept.json !== undefined) isChanged = true
    if (kept !== undefined) elements.push(kept.json ?? reading.text.slice(at, end))
  })
  return isChanged ? { json: `[${elements.join(',')}]` } : UNCHANGED
}

function typeOf(value: unknown): string | undefined {
  const { type } = value as { type?: unknown }
  return typeof type === 'string' ? type : undefined
}

function nameOf(name: string): string {
  return name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
