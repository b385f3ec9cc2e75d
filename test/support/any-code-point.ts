import fc from 'fast-check'

const SURROGATES = { first: 0xd800, count: 0x800 }
const LAST = 0x10ffff

/**
 * A string of one code point that is not a surrogate, as a unit of `fc.string()`. fast-check's own unit `binary` draws from the
 * same set, but first builds a table of all code points, which takes more than a second of CPU time in every process.
 */
export const anyCodePoint: fc.Arbitrary<string> = fc.nat(LAST - SURROGATES.count).map(toText, toIndex)

function toText(index: number): string {
  return String.fromCodePoint(index < SURROGATES.first ? index : index + SURROGATES.count)
}

/** fast-check needs the inverse to mix its own dangerous strings, such as `__proto__`, with the drawn strings. */
function toIndex(text: unknown): number {
  const code = typeof text === 'string' ? text.codePointAt(0) : undefined
  if (code === undefined || text !== String.fromCodePoint(code)) throw new TypeError('not one code point')
  if (code < SURROGATES.first) return code
  if (code < SURROGATES.first + SURROGATES.count) throw new TypeError('a surrogate')
  return code - SURROGATES.count
}
