/**
 * Edits of a JSON text that keep all other bytes. Parsing and printing would turn 1.0 into 1, round long integers and resolve
 * escapes, and so change the prompt of an engine.
 *
 * The text must be valid JSON (parse it first); paths that do not exist throw.
 */

export interface JsonEdit {
  path: readonly (string | number)[]
  /** JSON text that replaces the value. */
  json: string
}

export function replaceValues(text: string, edits: readonly JsonEdit[]): string {
  const spans = edits.map((edit) => ({ ...findValue(text, edit.path), json: edit.json }))
  spans.sort((a, b) => a.start - b.start)
  let result = ''
  let at = 0
  for (const span of spans) {
    if (span.start < at) throw new RangeError('edits overlap')
    result += text.slice(at, span.start) + span.json
    at = span.end
  }
  return result + text.slice(at)
}

/**
 * Sets members of a JSON object: replaces existing members, appends others. Never creates duplicate names, which some parsers
 * reject. Undefined members are not changed.
 */
export function setMembers(text: string, members: Readonly<Record<string, unknown>>): string {
  const missing = new Map(
    Object.entries(members).flatMap(([name, value]) => {
      const json = JSON.stringify(value)
      return json === undefined ? [] : [[name, json] as const]
    }),
  )
  if (missing.size === 0) return text
  const start = skipSpace(text, 0)
  // Of two equal keys the last counts.
  const found = new Map<string, number>()
  const close = eachMember(text, start, (name, value) => {
    if (missing.has(name)) found.set(name, value)
  })
  let result = ''
  let at = 0
  for (const [name, value] of [...found].toSorted(([, one], [, other]) => one - other)) {
    result += text.slice(at, value) + missing.get(name)
    at = skipValue(text, value)
    missing.delete(name)
  }
  result += text.slice(at, close)
  const added = [...missing].map(([name, json]) => `${JSON.stringify(name)}:${json}`).join(',')
  const isEmpty = skipSpace(text, start + 1) === close
  return `${result}${isEmpty || added === '' ? '' : ','}${added}${text.slice(close)}`
}

/** Returns the positions of the members of a JSON object, including duplicate names. */
export function membersOf(text: string): { name: string; start: number; end: number }[] {
  const members: { name: string; start: number; end: number }[] = []
  eachMember(text, skipSpace(text, 0), (name, start, end) => members.push({ name, start, end }))
  return members
}

/** Returns the start of the list element at or after `at`, and the position after it; `next` is undefined for the last. */
export function skipElement(text: string, at: number): { start: number; next: number | undefined } {
  const start = skipSpace(text, at)
  const end = skipSpace(text, skipValue(text, start))
  return { start, next: text[end] === ',' ? end + 1 : undefined }
}

interface Span {
  start: number
  end: number
}

function findValue(text: string, path: readonly (string | number)[]): Span {
  let start = skipSpace(text, 0)
  for (const step of path) {
    const found = typeof step === 'number' ? findElement(text, start, step) : findMember(text, start, step)
    if (found === undefined) throw new RangeError(`no value at ${path.join('.')}`)
    start = found
  }
  return { start, end: skipValue(text, start) }
}

function findElement(text: string, arrayStart: number, index: number): number | undefined {
  if (text[arrayStart] !== '[') return undefined
  let at = skipSpace(text, arrayStart + 1)
  for (let i = 0; text[at] !== ']'; i++) {
    if (i === index) return at
    at = skipSpace(text, skipValue(text, at))
    if (text[at] === ',') at = skipSpace(text, at + 1)
  }
  return undefined
}

/** Returns the last member of that name, as `JSON.parse` does. */
function findMember(text: string, objectStart: number, name: string): number | undefined {
  if (text[objectStart] !== '{') return undefined
  let found: number | undefined
  eachMember(text, objectStart, (key, value) => {
    if (key === name) found = value
  })
  return found
}

/** Visits the members of an object in order. Returns the position of its closing brace. */
function eachMember(
  text: string,
  objectStart: number,
  visit: (name: string, value: number, end: number) => void,
): number {
  let at = skipSpace(text, objectStart + 1)
  while (text[at] !== '}') {
    const { name, valueStart } = readKey(text, at)
    const end = skipValue(text, valueStart)
    visit(name, valueStart, end)
    at = skipSpace(text, end)
    if (text[at] === ',') at = skipSpace(text, at + 1)
  }
  return at
}

/** Returns the name of the member whose key begins at `at`, and the start of its value. */
export function readKey(text: string, at: number): { name: string; valueStart: number } {
  const keyEnd = skipString(text, at)
  const key = text.slice(at + 1, keyEnd - 1)
  const name = key.includes('\\') ? (JSON.parse(`"${key}"`) as string) : key
  return { name, valueStart: skipSpace(text, skipSpace(text, keyEnd) + 1) }
}

/** Returns the end of a value. */
export function skipValue(text: string, start: number): number {
  const first = text.charCodeAt(start)
  if (first === QUOTE) return skipString(text, start)
  if (first !== OPEN_BRACE && first !== OPEN_BRACKET) return skipScalar(text, start)
  let depth = 0
  for (let at = start; at < text.length;) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = skipString(text, at)
      continue
    }
    if (code === OPEN_BRACE || code === OPEN_BRACKET) depth += 1
    if (code === CLOSE_BRACE || code === CLOSE_BRACKET) depth -= 1
    at += 1
    if (depth === 0) return at
  }
  throw new RangeError('unbalanced JSON')
}

function skipString(text: string, start: number): number {
  let end = text.indexOf('"', start + 1)
  while (end !== -1 && isEscaped(text, end)) end = text.indexOf('"', end + 1)
  if (end === -1) throw new RangeError('unterminated JSON string')
  return end + 1
}

function isEscaped(text: string, at: number): boolean {
  let backslashes = 0
  while (text.charCodeAt(at - 1 - backslashes) === BACKSLASH) backslashes += 1
  return backslashes % 2 === 1
}

function skipScalar(text: string, start: number): number {
  let at = start
  while (at < text.length && !SCALAR_END.has(text.charCodeAt(at))) at += 1
  return at
}

export function skipSpace(text: string, start: number): number {
  let at = start
  while (SPACES.has(text.charCodeAt(at))) at += 1
  return at
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const SPACES: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d])
const SCALAR_END: ReadonlySet<number> = new Set([...SPACES, 0x2c, CLOSE_BRACE, CLOSE_BRACKET])
