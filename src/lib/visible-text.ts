/**
 * Characters that act on a terminal or on the order of what it shows, instead of being shown: controls (C0, DEL, C1),
 * formats (bidirectional overrides, zero-width characters), lone surrogates, line and paragraph separators, and code points
 * without a character.
 */
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu

const SHORT: Readonly<Record<string, string>> = { '\n': String.raw`\n`, '\r': String.raw`\r`, '\t': String.raw`\t` }

/** Foreign text as one line for a terminal: every hidden character is shown as an escape, such as `\n` or `\u{1b}`. */
export function toVisibleLine(text: string): string {
  return text.replaceAll(HIDDEN, (character) => SHORT[character] ?? `\\u{${character.codePointAt(0)!.toString(16)}}`)
}

/** Foreign text for a terminal that keeps its lines. A tab is four spaces. */
export function toVisibleText(text: string): string {
  const lines = text.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n')
  return lines.map(toVisibleLine).join('\n')
}

/** Foreign text of several lines behind a label: lines after the first begin `columns` spaces from the left. */
export function toHangingText(text: string, columns: number): string {
  return toVisibleText(text).replaceAll('\n', `\n${' '.repeat(columns)}`)
}

/**
 * The same JSON with every hidden character inside its strings as a `\u` escape: a parser reads the same values, a terminal
 * shows what is there. White space between values stays.
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
