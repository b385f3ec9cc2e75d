const QUOTE = 0x22
const BACKSLASH = 0x5c

/** Amount by which each byte outside of strings changes the count. */
function weigh(weights: Readonly<Record<string, number>>): Int8Array {
  const table = new Int8Array(256)
  for (const [character, weight] of Object.entries(weights)) table[character.charCodeAt(0)] = weight
  return table
}

const NESTING = weigh({ '[': 1, '{': 1, ']': -1, '}': -1 })
// Every value but the first of a list or object stands behind a comma.
const VALUES = weigh({ ',': 1 })
const MEMBERS = weigh({ ':': 1, '[': 1, '{': 1 })

/**
 * Whether a JSON text nests objects and arrays deeper than `limit`. Made to run before parsing: a few megabytes of `[`
 * would otherwise become gigabytes of arrays. Says nothing about whether the text is JSON.
 */
export function nestsDeeperThan(text: Buffer, limit: number): boolean {
  return exceeds(text, NESTING, limit)
}

/**
 * Whether a JSON text holds more than about `limit` values. Runs before parsing, like `nestsDeeperThan`: the parser needs
 * up to 16 bytes of memory for each byte of `[1,1,1,…]`, and every reader of the value visits each element.
 */
export function holdsMoreValuesThan(text: Buffer, limit: number): boolean {
  return exceeds(text, VALUES, limit)
}

/**
 * Whether a JSON text holds more than `limit` objects, arrays and keys together. Each of these takes up to 150 bytes of
 * memory when it is parsed, which is far more than a number takes.
 */
export function holdsMoreMembersThan(text: Buffer, limit: number): boolean {
  return exceeds(text, MEMBERS, limit)
}

function exceeds(text: Buffer, weights: Int8Array, limit: number): boolean {
  let count = 0
  for (let i = 0; i < text.length; i++) {
    const byte = text[i]!
    if (byte === QUOTE) {
      i = endOfString(text, i)
      if (i === -1) return false
    } else if ((count += weights[byte]!) > limit) return true
  }
  return false
}

/** Bytes behind an escaped quote that are read one by one: more escaped quotes are likely to follow. */
const STRETCH = 256

/** Strings are most of a body, so their ends are found by the runtime and not byte by byte. */
function endOfString(text: Buffer, start: number): number {
  for (let at = start + 1; ;) {
    const quote = text.indexOf(QUOTE, at)
    if (quote === -1 || !isEscaped(text, quote)) return quote
    const end = Math.min(text.length, quote + STRETCH)
    for (at = quote + 1; at < end; at++) {
      if (text[at] === BACKSLASH) at++
      else if (text[at] === QUOTE) return at
    }
  }
}

function isEscaped(text: Buffer, at: number): boolean {
  let backslashes = 0
  while (text[at - 1 - backslashes] === BACKSLASH) backslashes++
  return backslashes % 2 === 1
}
