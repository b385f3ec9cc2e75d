import { toLogprob } from '../to-logprob.ts'

/**
 * Reads ids, log probabilities and texts from bytes. Each function returns the position where the part ends, or -1 when
 * the bytes are not valid JSON for that part; the caller then leaves the chunk or answer to `JSON.parse`. These are
 * functions because methods of a scanner class run at half the speed.
 */

/** Bytes, and a view that reads several of them at once. */
export interface Source {
  readonly bytes: Buffer
  readonly view: DataView
}

export function toSource(bytes: Buffer): Source {
  return { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength) }
}

/** A buffer for numbers. Readers append behind the first `length`, and fail when the buffer is full. */
export interface Numbers<T extends Int32Array | Float32Array> {
  readonly values: T
  length: number
}

// --- constants --------------------------------------------------------------------------------------------------------

/**
 * At least four bytes of text, compared eight at a time as 64-bit floats. Equal floats have equal bytes except for NaN and
 * zero, which no text encodes; bytes that encode NaN would never compare as equal, which is safe.
 */
export interface Constant {
  readonly length: number
  readonly words: Float64Array
  /** The last eight bytes, which may overlap the word before. */
  readonly lastWord: number
  /** The first and the last four bytes, for a constant of fewer than eight bytes. */
  readonly halves: readonly [number, number]
}

export function toConstant(text: string | Buffer): Constant {
  const bytes = typeof text === 'string' ? Buffer.from(text) : text
  const { length } = bytes
  if (length < 4) throw new RangeError('a constant needs at least four bytes')
  return {
    length,
    words: Float64Array.from({ length: length >> 3 }, (_, i) => bytes.readDoubleLE(i * 8)),
    lastWord: length < 8 ? 0 : bytes.readDoubleLE(length - 8),
    halves: [bytes.readInt32LE(0), bytes.readInt32LE(length - 4)],
  }
}

export function isAt({ bytes, view }: Source, at: number, constant: Constant): boolean {
  const { length, words, lastWord } = constant
  if (at + length > bytes.length) return false
  if (length < 8) {
    const [first, last] = constant.halves
    return view.getInt32(at, true) === first && view.getInt32(at + length - 4, true) === last
  }
  for (let i = 0; i < words.length; i++) if (view.getFloat64(at + i * 8, true) !== words[i]) return false
  return view.getFloat64(at + length - 8, true) === lastWord
}

// --- strings ----------------------------------------------------------------------------------------------------------

/** Returns the position of the quote that ends the string whose first character is at `at`. */
export function scanString({ bytes }: Source, at: number): number {
  const { length } = bytes
  for (let i = at; i < length;) {
    const kind = CHARACTERS[bytes[i] as number]
    if (kind === Character.plain || kind === Character.multiByte) {
      i += 1
    } else if (kind === Character.quote) {
      return i
    } else {
      const size = kind === Character.backslash ? escapeSize(bytes, i) : 0
      if (size === 0) return -1
      i += size
    }
  }
  return -1
}

/** Whether the text has only characters of one byte and no escapes. */
export function isPlain({ bytes }: Source, start: number, end: number): boolean {
  for (let i = start; i < end; i++) if (CHARACTERS[bytes[i] as number] !== Character.plain) return false
  return true
}

const Character = { plain: 0, multiByte: 1, quote: 2, backslash: 3, forbidden: 4 } as const

const CHARACTERS = Uint8Array.from({ length: 256 }, (_, byte) => {
  if (byte < 0x20) return Character.forbidden
  if (byte >= 0x80) return Character.multiByte
  if (byte === 0x22) return Character.quote
  return byte === 0x5c ? Character.backslash : Character.plain
})

/** Returns the length in bytes of the escape at `at`; 0 when JSON has no such escape. */
function escapeSize(bytes: Buffer, at: number): number {
  const kind = bytes[at + 1] ?? 0
  if (ESCAPED[kind] === 1) return 2
  if (kind !== SMALL_U || at + 6 > bytes.length) return 0
  for (let i = at + 2; i < at + 6; i++) if (IS_HEX[bytes[i] as number] !== 1) return 0
  return 6
}

// --- ids --------------------------------------------------------------------------------------------------------------

/** Returns the position of the bracket that ends the list of ids that begins at `at`. An id has at most nine digits. */
export function scanIds({ bytes }: Source, at: number, into: Numbers<Int32Array>): number {
  const { length } = bytes
  const { values } = into
  let count = into.length
  let i = at
  if (bytes[i] !== CLOSE_BRACKET) {
    for (; ; i++) {
      if (i >= length || count === values.length) return -1
      const first = (bytes[i] as number) - ZERO
      if (first >>> 0 > 9) return -1
      const start = i++
      let id = first
      if (first !== 0) {
        for (let digit = 0; i < length && (digit = (bytes[i] as number) - ZERO) >>> 0 <= 9; i++) id = id * 10 + digit
        if (i - start > 9) return -1
      }
      values[count++] = id
      const after = bytes[i]
      if (after === CLOSE_BRACKET) break
      if (after !== COMMA) return -1
    }
  }
  into.length = count
  return i
}

// --- log probabilities ------------------------------------------------------------------------------------------------

/**
 * Returns the position of the bracket that ends a list of log probabilities in vLLM's format, whose first entry is at
 * `at`. The other members of the entries are validated and skipped.
 */
export function scanLogprobs(source: Source, at: number, into: Numbers<Float32Array>): number {
  const { bytes } = source
  const { values } = into
  let count = into.length
  let i = at
  if (bytes[i] !== CLOSE_BRACKET) {
    for (; ; i++) {
      if (count === values.length || !isAt(source, i, TOKEN)) return -1
      if ((i = scanString(source, i + TOKEN.length)) === -1 || !isAt(source, i, LOGPROB)) return -1
      if ((i = scanLogprob(source, i + LOGPROB.length, values, count++)) === -1 || !isAt(source, i, BYTES)) return -1
      if ((i = scanByteValues(source, i + BYTES.length)) === -1 || !isAt(source, i, NO_TOP)) return -1
      i += NO_TOP.length
      const after = bytes[i]
      if (after === CLOSE_BRACKET) break
      if (after !== COMMA) return -1
    }
  }
  into.length = count
  return i
}

const TOKEN = toConstant('{"token":"')
const LOGPROB = toConstant('","logprob":')
const BYTES = toConstant(',"bytes":[')
const NO_TOP = toConstant('],"top_logprobs":[]}')

/**
 * Writes a number to `values`, rounded to 32 bits.
 *
 * Engines compute in 32 bits and print in 64, so nearly every number is exactly a 32-bit float with 15 decimals or more.
 * The sum of its first 18 decimals identifies this float: if the sum, plus the largest error of rounding and of the
 * omitted digits, is nearer to a 32-bit float than a quarter of the distance to the next one, no other float is possible.
 * `Number` parses all other numbers.
 */
function scanLogprob({ bytes, view }: Source, at: number, values: Float32Array, index: number): number {
  const isNegative = bytes[at] === MINUS
  let i = isNegative ? at + 1 : at
  const { length } = bytes
  if (i + 24 > length) return scanAnyNumber(bytes, at, values, index)
  const whole = (bytes[i] as number) - ZERO
  if (whole >>> 0 > 9 || bytes[i + 1] !== POINT) return scanAnyNumber(bytes, at, values, index)
  i += 2
  const first = view.getInt32(i, true)
  const second = view.getInt32(i + 4, true)
  const third = view.getInt32(i + 8, true)
  if (!isFourDigits(first) || !isFourDigits(second) || !isFourDigits(third)) {
    return scanAnyNumber(bytes, at, values, index)
  }
  i += 12
  let more = 0
  let moreCount = 0
  for (let digit = 0; i < length && (digit = (bytes[i] as number) - ZERO) >>> 0 <= 9; i++) {
    if (moreCount === 6) continue
    more = (Math.imul(more, 10) + digit) | 0
    moreCount += 1
  }
  let exponent = 0
  if (bytes[i] === SMALL_E && bytes[i + 1] === MINUS && i + 3 < length) {
    const tens = (bytes[i + 2] as number) - ZERO
    const ones = (bytes[i + 3] as number) - ZERO
    if (tens >>> 0 > 1 || ones >>> 0 > 9) return scanAnyNumber(bytes, at, values, index)
    exponent = tens * 10 + ones
    i += 4
  }
  if (i >= length || IN_NUMBER[bytes[i] as number] === 1) return scanAnyNumber(bytes, at, values, index)
  const decimals = 12 + moreCount
  const twelve = toFourDigits(first) * 1e8 + (Math.imul(toFourDigits(second), 10_000) + toFourDigits(third))
  const sum = whole * (POWERS[decimals] as number) + twelve * (POWERS[moreCount] as number) + more
  const value = sum / (POWERS[decimals + exponent] as number)
  const rounded = Math.fround(value)
  const error = value * 1e-15 + (LEFT_OUT[exponent] as number)
  if (!(Math.abs(value - rounded) + error <= rounded * 2 ** -26)) return scanAnyNumber(bytes, at, values, index)
  values[index] = isNegative ? -rounded : rounded
  return i
}

const POWERS = Float64Array.from({ length: 40 }, (_, i) => Number(`1e${i}`))
/** The largest value of the digits behind the 18th decimal, by exponent. */
const LEFT_OUT = Float64Array.from({ length: 20 }, (_, i) => Number(`1e-${18 + i}`))

function scanAnyNumber(bytes: Buffer, at: number, values: Float32Array, index: number): number {
  let end = at
  while (IN_NUMBER[bytes[end] ?? 0] === 1) end += 1
  const text = bytes.toString('latin1', at, end)
  if (!JSON_NUMBER.test(text)) return -1
  values[index] = toLogprob(Number(text))
  return end
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

/** Whether a little-endian word consists of four digits. */
function isFourDigits(word: number): boolean {
  return ((word & 0xf0f0f0f0) | 0) === 0x30303030 && (((word + 0x06060606) & 0xf0f0f0f0) | 0) === 0x30303030
}

/** Combines digits to pairs and pairs to a number; one multiplication for each step. */
function toFourDigits(word: number): number {
  const digits = (word - 0x30303030) | 0
  const pairs = (Math.imul(digits, 10) + (digits >>> 8)) & 0x00ff00ff
  return (Math.imul(pairs, 100) + (pairs >>> 16)) & 0xffff
}

/**
 * Returns the position of the bracket that ends a list of numbers of up to three digits. Adds lengths instead of
 * branching, because the branches would be mispredicted.
 */
function scanByteValues({ bytes }: Source, at: number): number {
  if (bytes[at] === CLOSE_BRACKET) return at
  for (let i = at; i + 3 < bytes.length; i++) {
    const first = (bytes[i] as number) - ZERO
    const hasSecond = IS_DIGIT[bytes[i + 1] as number] as number
    const hasThird = hasSecond & (IS_DIGIT[bytes[i + 2] as number] as number)
    if (first >>> 0 > 9 || (first === 0 && hasSecond === 1)) return -1
    i += 1 + hasSecond + hasThird
    const after = bytes[i]
    if (after === CLOSE_BRACKET) return i
    if (after !== COMMA) return -1
  }
  return -1
}

const COMMA = 44
const MINUS = 45
const POINT = 46
const ZERO = 48
const CLOSE_BRACKET = 93
const SMALL_E = 101
const SMALL_U = 117

const ESCAPED = tableOf('"\\/bfnrt')
const IS_HEX = tableOf('0123456789abcdefABCDEF')
const IS_DIGIT = tableOf('0123456789')
const IN_NUMBER = tableOf('0123456789+-.eE')

function tableOf(characters: string): Uint8Array {
  const table = new Uint8Array(256)
  for (const character of characters) table[character.charCodeAt(0)] = 1
  return table
}
