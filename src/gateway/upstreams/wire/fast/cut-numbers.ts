import { JsonBytes } from '../../../../lib/json/json-bytes.ts'
import type { WireFields } from '../../../wire-event.ts'
import type { PromptIdCache } from './prompt-id-cache.ts'
import { scanIds, scanLogprobs, toSource, type Source } from './scan-bytes.ts'

/** A list of numbers that was cut out of an answer or chunk. */
export interface CutList<T extends Int32Array | Float32Array> {
  numbers: T
  /** Positions in the answer, brackets included. */
  start: number
  end: number
}

/** An answer without its long lists: `value` is the result of `JSON.parse`, with null instead of each list. */
export interface CutAnswer {
  value: WireFields
  promptIds?: CutList<Int32Array>
  /** In the order of the choices in the answer. */
  choices: { ids?: CutList<Int32Array>; logprobs?: CutList<Float32Array> }[]
}

/** A string of this mark and an index replaces a list while the rest is parsed. */
const MARK = '\u2702'

/** Whether a JSON text contains the mark, literal or escaped. */
function hasMark(json: string): boolean {
  return json.includes(MARK) || json.includes('\\u2702')
}

/**
 * Cuts the ids and log probabilities out of an answer or chunk and parses the rest. Undefined when the bytes are not in
 * the exact format of vLLM.
 *
 * Why this is safe: within a JSON string a quote follows a backslash, so `,"token_ids":[` always begins a member, unless
 * the text is not JSON. Each list is read to its end by the grammar of JSON. A marked string in its place leaves an object
 * of the same form, which `JSON.parse` checks. The member that holds the marked string after parsing is the member of the
 * list. When a mark is found in another member, twice or not at all, the cut is discarded.
 */
export function cutNumbers(bytes: Buffer, cache: PromptIdCache): CutAnswer | undefined {
  const source = toSource(bytes)
  const lists: CutList<Int32Array | Float32Array>[] = []
  let rest = ''
  let at = 0

  const cut = (start: number, list: { numbers: Int32Array | Float32Array; end: number }): boolean => {
    const before = bytes.toString('utf8', at, start)
    if (hasMark(before)) return false
    rest += `${before}"${MARK}${lists.length}"`
    lists.push({ ...list, start })
    at = list.end
    return true
  }

  for (;;) {
    // Log probabilities first: a search for another member would scan all their bytes.
    const found = findMember(bytes, LOGPROBS, at)
    const until = found === -1 ? bytes.length : found
    for (let ids = findIds(bytes, at, until); ids !== undefined; ids = findIds(bytes, at, until)) {
      const list = ids.isPrompt ? readPromptIds(source, ids.start, cache) : readIds(source, ids.start)
      if (list === undefined || !cut(ids.start, list)) return undefined
    }
    if (found === -1) break
    const start = found + LOGPROBS.length - 1
    const list = readLogprobs(source, start)
    if (list === undefined || !cut(start, list)) return undefined
  }
  if (lists.length === 0) return undefined
  const last = bytes.toString('utf8', at)
  if (hasMark(last)) return undefined
  return assignLists(rest + last, lists)
}

const LOGPROBS = Buffer.from('"logprobs":{"content":[')
const TOKEN_IDS = Buffer.from('token_ids":[')
const BEFORE_SAMPLED = Buffer.from('"')
const BEFORE_PROMPT = Buffer.from('"prompt_')

/** Returns the position of the next member that begins with `start`. */
function findMember(bytes: Buffer, start: Buffer, from: number): number {
  let at = bytes.indexOf(start, from)
  while (at !== -1 && !isMemberStart(bytes, at)) at = bytes.indexOf(start, at + 1)
  return at
}

function findIds(bytes: Buffer, from: number, until: number): { start: number; isPrompt: boolean } | undefined {
  const region = bytes.subarray(from, until)
  for (let at = region.indexOf(TOKEN_IDS); at !== -1; at = region.indexOf(TOKEN_IDS, at + 1)) {
    const key = from + at
    const start = key + TOKEN_IDS.length - 1
    if (endsWith(bytes, BEFORE_PROMPT, key) && isMemberStart(bytes, key - BEFORE_PROMPT.length)) {
      return { start, isPrompt: true }
    }
    if (endsWith(bytes, BEFORE_SAMPLED, key) && isMemberStart(bytes, key - BEFORE_SAMPLED.length)) {
      return { start, isPrompt: false }
    }
  }
  return undefined
}

function endsWith(bytes: Buffer, text: Buffer, end: number): boolean {
  return end >= text.length && bytes.compare(text, 0, text.length, end - text.length, end) === 0
}

/** Whether a quote begins a member name. Within a string it would follow a backslash, and as a value a colon. */
function isMemberStart(bytes: Buffer, at: number): boolean {
  const before = bytes[at - 1]
  return before === COMMA || before === OPEN_BRACE
}

const COMMA = 44
const OPEN_BRACE = 123

// --- reading ----------------------------------------------------------------------------------------------------------

function readPromptIds(source: Source, start: number, cache: PromptIdCache): CutPart<Int32Array> | undefined {
  const read = cache.read(source, start + 1)
  return read === undefined ? undefined : { numbers: read.ids, end: read.end + 1 }
}

function readIds(source: Source, start: number): CutPart<Int32Array> | undefined {
  const close = source.bytes.indexOf(CLOSE_BRACKET, start)
  if (close === -1) return undefined
  const into = { values: new Int32Array(((close - start) >> 1) + 1), length: 0 }
  if (scanIds(source, start + 1, into) !== close) return undefined
  return { numbers: into.values.slice(0, into.length), end: close + 1 }
}

const SHORTEST_ENTRY = '{"token":"","logprob":0,"bytes":[],"top_logprobs":[]},'.length

function readLogprobs(source: Source, start: number): CutPart<Float32Array> | undefined {
  const capacity = Math.ceil((source.bytes.length - start) / SHORTEST_ENTRY)
  const into = { values: new Float32Array(capacity), length: 0 }
  const close = scanLogprobs(source, start + 1, into)
  return close === -1 ? undefined : { numbers: into.values.slice(0, into.length), end: close + 1 }
}

type CutPart<T extends Int32Array | Float32Array> = Omit<CutList<T>, 'start'>

const CLOSE_BRACKET = 93

// --- assign lists to members -----------------------------------------------------------------------------------------

function assignLists(rest: string, lists: readonly CutList<Int32Array | Float32Array>[]): CutAnswer | undefined {
  let value: MarkedAnswer
  try {
    value = JSON.parse(rest) as MarkedAnswer
  } catch {
    return undefined
  }
  const placed = new Set<unknown>()
  const take = (mark: unknown): CutList<Int32Array | Float32Array> | undefined => {
    if (typeof mark !== 'string' || !mark.startsWith(MARK)) return undefined
    const list = lists[Number(mark.slice(MARK.length))]
    placed.add(list)
    return list
  }
  const promptIds = take(value.prompt_token_ids) as CutList<Int32Array> | undefined
  if (promptIds !== undefined) value.prompt_token_ids = null
  const choices = (Array.isArray(value.choices) ? value.choices : []).map((choice) => {
    const ids = take(choice?.token_ids) as CutList<Int32Array> | undefined
    if (ids !== undefined) choice.token_ids = null
    const logprobs = take(choice?.logprobs?.content) as CutList<Float32Array> | undefined
    if (logprobs !== undefined && choice.logprobs) choice.logprobs.content = null
    return { ids, logprobs }
  })
  return placed.size === lists.length ? { value: value as WireFields, promptIds, choices } : undefined
}

interface MarkedAnswer {
  prompt_token_ids?: unknown
  choices?: { token_ids?: unknown; logprobs?: { content?: unknown } | null }[]
}

// --- slice bytes ------------------------------------------------------------------------------------------------------

export function sliceBytes(pieces: readonly Buffer[], start: number, end: number): JsonBytes {
  const parts: Buffer[] = []
  let offset = 0
  for (const piece of pieces) {
    const part = piece.subarray(Math.max(0, start - offset), Math.max(0, end - offset))
    if (part.length > 0) parts.push(part)
    offset += piece.length
  }
  return new JsonBytes(parts)
}
