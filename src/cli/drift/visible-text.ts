import { toVisibleLine } from '../../lib/visible-text.ts'
import type { TokenDecoder } from '../../trajectory/attribute-context.ts'

/**
 * Returns the text of tokens on one line: control characters as escapes, bytes that are not a character as `\xE4`, ids
 * without a known text in brackets. Callers format the tokens before and after a position separately, which may split a
 * character.
 */
export function visibleText(ids: Int32Array, decoder: TokenDecoder | undefined): string {
  if (decoder === undefined) return Array.from(ids, (id) => ` ${id}`).join('')
  let text = ''
  let held: number[] = []
  for (const id of ids) {
    const bytes = decoder.bytesOf(id)
    if (bytes !== undefined) {
      held.push(...bytes)
      continue
    }
    text += decodeVisibly(held)
    held = []
    text += `[${id}]`
  }
  return text + decodeVisibly(held)
}

function decodeVisibly(bytes: readonly number[]): string {
  let text = ''
  for (let at = 0; at < bytes.length;) {
    const length = sequenceLength(bytes[at] as number)
    const character = decodeStrictly(bytes.slice(at, at + length))
    text += character === undefined ? `\\x${toHex(bytes[at] as number)}` : toVisibleLine(character)
    at += character === undefined ? 1 : length
  }
  return text
}

function sequenceLength(first: number): number {
  if (first >= 0xf0) return 4
  if (first >= 0xe0) return 3
  return first >= 0xc0 ? 2 : 1
}

function decodeStrictly(bytes: readonly number[]): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes))
  } catch {
    return undefined
  }
}

function toHex(byte: number): string {
  return byte.toString(16).toUpperCase().padStart(2, '0')
}

const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]|\p{Emoji_Presentation}/u

/** Returns the columns that a text takes in a terminal. */
export function widthOf(text: string): number {
  let width = 0
  for (const character of text) width += widthOfCharacter(character)
  return width
}

function widthOfCharacter(character: string): number {
  if (/\p{M}/u.test(character)) return 0
  return WIDE.test(character) ? 2 : 1
}

/** Shortens a text at its start to fit the width, and marks the cut. */
export function fitEnd(text: string, width: number): string {
  if (widthOf(text) <= width) return text
  const kept = takeWhileFits([...text].reverse(), width - 1)
  return `…${kept.reverse().join('')}`
}

/** Shortens a text at its end to fit the width, and marks the cut. */
export function fitStart(text: string, width: number): string {
  if (widthOf(text) <= width) return text
  return `${takeWhileFits([...text], width - 1).join('')}…`
}

function takeWhileFits(characters: readonly string[], width: number): string[] {
  const kept: string[] = []
  let used = 0
  for (const character of characters) {
    used += widthOfCharacter(character)
    if (used > width) break
    kept.push(character)
  }
  return kept
}

/** Breaks a text at spaces into lines that fit the width. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && widthOf(line) + 1 + widthOf(word) > width) {
      lines.push(line)
      line = word
    } else {
      line = line === '' ? word : `${line} ${word}`
    }
  }
  return [...lines, line]
}
