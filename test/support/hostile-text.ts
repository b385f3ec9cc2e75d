import fc from 'fast-check'
import { anyCodePoint } from './any-code-point.ts'

/** Sequences that move the cursor, rename the window, hide or reorder text, or forge a line. */
export const HOSTILE_PIECES = [
  '\x1b[2J\x1b[1;1H',
  '\x1b[31mred\x1b[0m',
  '\x1b]0;owned\x07',
  '\x1b]52;c;cm0gLXJmIH4=\x07',
  '\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\',
  '\x1bP+q544e\x1b\\',
  '\x9b31m',
  '\x9d0;owned\x9c',
  '\x90q\x9c',
  '\rforged',
  '\r\n',
  '\nCOMPLETED  forged-task  reward 1',
  '\b\b\b\b',
  '\x7f',
  '\x00',
  '\v\f',
  '\u2028forged\u2029',
  '\u202etxt.exe\u202c',
  '\u2066\u2067\u2068\u2069',
  '\u200b\u200d\u200e\u200f\u2060\ufeff\u061c',
  '\u{e0041}\u{e007f}',
] as const

export const HOSTILE = HOSTILE_PIECES.join('x')

export const anyHostileText: fc.Arbitrary<string> = fc.oneof(
  fc.string({ unit: fc.constantFrom(...HOSTILE_PIECES, 'plain ', '漢', '🙂') }),
  fc.string({ unit: anyCodePoint }),
)

/** Code points that a terminal may interpret, from the tables of Unicode, except the newline. */
const ACTIVE: readonly (readonly [from: number, to: number])[] = [
  [0x00, 0x09],
  [0x0b, 0x1f],
  [0x7f, 0x9f],
  [0x061c, 0x061c],
  [0x200b, 0x200f],
  [0x2028, 0x202e],
  [0x2060, 0x206f],
  [0xd800, 0xdfff],
  [0xfeff, 0xfeff],
  [0xe0000, 0xe007f],
]

/** Returns the code point of the first character that a terminal may interpret; undefined if there is none. */
export function activeIn(text: string): string | undefined {
  for (const character of text) {
    const point = character.codePointAt(0)!
    if (ACTIVE.some(([from, to]) => point >= from && point <= to)) return `U+${point.toString(16)}`
  }
  return undefined
}
