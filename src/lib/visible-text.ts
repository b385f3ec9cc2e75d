/**
 * Characters that a terminal does not show but interprets: controls (C0, DEL, C1),
 * formats (bidirectional overrides, zero-width characters), lone surrogates, line and paragraph separators, and code points
 * without a character.
 */
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu

const SHORT: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` }

/** Makes untrusted text one line for a terminal: hidden characters become escapes, such as `\n` or `\u{1b}`. */
export function toVisibleLine(text: string): string {
  return text.replaceAll(HIDDEN, (character) => SHORT[character] ?? `\\u{${character.codePointAt(0)!.toString(16)}}`)
}

/** Makes untrusted text safe for a terminal, and keeps its lines. A tab becomes four spaces. */
export function toVisibleText(text: string): string {
  const lines = text.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n')
  return lines.map(toVisibleLine).join('\n')
}

/** Like `toVisibleText()`, with all lines but the first indented by `columns` spaces. */
export function toHangingText(text: string, columns: number): string {
  return toVisibleText(text).replaceAll('\n', `\n${' '.repeat(columns)}`)
}

/**
 * Replaces hidden characters in the strings of a JSON text by `\u` escapes. The values and the white space between them stay
 * the same.
 */
export function toVisibleJson(json: string): string {
  return json.replaceAll(HIDDEN, (character) =>
    character === '\n'
      ? character
      : Array.from({ length: character.length }, (_, at) => toUnit(character, at)).join(''),
  )
}

function toUnit(text: string, at: number): string {
  return `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`
}
