/**
 * The regular expressions that a rule may use: a sequence of characters and classes, each with a bounded repetition. Rules
 * run on text that a sandbox controls, so no text may make them slow. Four limits guarantee this:
 *
 * 1. There are no groups, alternatives, look-arounds or back references, and every repetition has an upper bound.
 * 2. A piece with a variable repetition cannot match the piece that follows it, so matching never backtracks.
 * 3. A pattern begins with `^` or literal characters, which are searched for first.
 * 4. A text that contains these characters more than `MOST_CANDIDATES` times is left unchanged.
 *
 * So a text costs one search, and `MOST_CANDIDATES` times twice the length of the longest match.
 */

const LONGEST_MATCH = 500
const LONGEST_PATTERN = 2000
/** Literal characters at the beginning of a pattern. */
const SHORTEST_START = 3
const MOST_CANDIDATES = 2000

export type Replacer = (text: string, replacement: string) => string

/** Throws an Error whose message completes "the pattern …". */
export function compilePattern(source: string): Replacer {
  if (source.length > LONGEST_PATTERN) throw new Error(`is longer than ${LONGEST_PATTERN} characters`)
  const isAnchored = source.startsWith('^')
  const pieces = toPieces(source, isAnchored ? 1 : 0)
  const longest = pieces.reduce((sum, { most }) => sum + most, 0)
  if (longest === 0) throw new Error('matches nothing')
  if (longest > LONGEST_MATCH) throw new Error(`may match ${longest} characters; at most ${LONGEST_MATCH} are allowed`)
  const start = pieces.slice(0, SHORTEST_START)
  if (!isAnchored && (start.length < SHORTEST_START || !start.every(isLiteral))) {
    throw new Error(`must begin with ^ or ${SHORTEST_START} literal characters`)
  }
  const pattern = toRegExp(source, 'uy')
  assertOneWay(pieces)
  if (isAnchored) {
    return (text, replacement) => {
      const match = matchAt(pattern, text, 0)
      return match === null ? text : replacement + text.slice(match[0].length)
    }
  }
  const literal = toRegExp(leadingLiterals(pieces), 'gu')
  return (text, replacement) => replaceMatches(text, { literal, pattern }, replacement)
}

function assertOneWay(pieces: readonly Piece[]): void {
  let characters: string | undefined
  for (const [i, piece] of pieces.entries()) {
    if (piece.least === piece.most) continue
    for (const next of followers(pieces, i)) {
      characters ??= everyCharacter()
      if (mayBoth(piece, next, characters)) {
        throw new Error(`repeats ${piece.atom}, which also matches the ${next.atom} after it: exclude it`)
      }
    }
  }
}

function leadingLiterals(pieces: readonly Piece[]): string {
  const end = pieces.findIndex((piece) => !isLiteral(piece))
  return pieces
    .slice(0, end === -1 ? undefined : end)
    .map(({ atom }) => atom)
    .join('')
}

function replaceMatches(
  text: string,
  { literal, pattern }: { literal: RegExp; pattern: RegExp },
  replacement: string,
): string {
  let result = ''
  let kept = 0
  let candidates = 0
  for (let found = matchAt(literal, text, 0); found !== null; found = matchAt(literal, text, literal.lastIndex)) {
    candidates += 1
    if (candidates > MOST_CANDIDATES) return text
    const match = matchAt(pattern, text, found.index)
    if (match === null) {
      literal.lastIndex = found.index + (text.codePointAt(found.index)! > 0xffff ? 2 : 1)
      continue
    }
    result += text.slice(kept, found.index) + replacement
    kept = pattern.lastIndex
    literal.lastIndex = kept
  }
  return kept === 0 ? text : result + text.slice(kept)
}

/** Returns a pattern that matches only this text. */
export function escapePattern(text: string): string {
  return text
    .replaceAll(/[\\^$.*+?()[\]{}|/]/g, String.raw`\$&`)
    .replaceAll('\n', String.raw`\n`)
    .replaceAll('\r', String.raw`\r`)
    .replaceAll('\t', String.raw`\t`)
}

interface Piece {
  atom: string
  least: number
  most: number
}

const ATOM =
  /\\(?:u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[dDwWsSnrtfv0]|[\\^$.*+?()[\]{}|/-])|\[(?:\\.|[^\]\\])*\]|[^\\[\](){}*+?|^$]/suy
const TIMES = /\?|\{(\d{1,4})(?:,(\d{1,4}))?\}/y

function toPieces(source: string, start: number): Piece[] {
  const pieces: Piece[] = []
  const end = source.endsWith('$') && !/(?:^|[^\\])(?:\\\\)*\\\$$/.test(source) ? source.length - 1 : source.length
  let at = start
  while (at < end) {
    const atom = matchAt(ATOM, source, at)?.[0]
    if (atom === undefined) throw new Error(whyNotPlain(source, at))
    at += atom.length
    const times = matchAt(TIMES, source, at)
    at += times?.[0].length ?? 0
    pieces.push({ atom, ...timesOf(times) })
  }
  return pieces
}

function matchAt(pattern: RegExp, text: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at
  return pattern.exec(text)
}

function timesOf(times: RegExpExecArray | null): { least: number; most: number } {
  if (times === null) return { least: 1, most: 1 }
  if (times[0] === '?') return { least: 0, most: 1 }
  return { least: Number(times[1]), most: Number(times[2] ?? times[1]) }
}

function whyNotPlain(source: string, at: number): string {
  const rest = source.slice(at)
  const start = `has "${rest.slice(0, 8)}" at character ${at + 1}`
  if (/^[*+]|^\{\d*,\}/.test(rest)) return `${start}: set an upper bound, as in [^\\n]{0,200}`
  if (/^[(|)]/.test(rest)) return `${start}: groups and alternatives are not allowed; write two rules`
  return `${start}: only characters, classes and bounded repetitions like {1,20} are allowed; escape special characters with a backslash`
}

function isLiteral({ atom, least, most }: Piece): boolean {
  return least === 1 && most === 1 && atom !== '.' && !atom.startsWith('[') && !/^\\[dDwWsS]/.test(atom)
}

/** Returns the pieces that may directly follow a piece: those up to and including the first required piece. */
function followers(pieces: readonly Piece[], index: number): Piece[] {
  const rest = pieces.slice(index + 1)
  const last = rest.findIndex(({ least }) => least > 0)
  return last === -1 ? rest : rest.slice(0, last + 1)
}

/** Whether any character matches both pieces. Tries every Unicode character. */
function mayBoth(one: Piece, other: Piece, characters: string): boolean {
  return toRegExp(`(?=${one.atom})${other.atom}`, 'u').test(characters)
}

function everyCharacter(): string {
  const units = new Uint16Array(0x1_0000 - 0x800 + 2 * 0x10_0000)
  let at = 0
  for (let unit = 0; unit < 0x1_0000; unit++) if (unit < 0xd800 || unit > 0xdfff) units[at++] = unit
  for (let offset = 0; offset < 0x10_0000; offset++) {
    units[at++] = 0xd800 | (offset >> 10)
    units[at++] = 0xdc00 | (offset & 0x3ff)
  }
  return new TextDecoder('utf-16le').decode(units)
}

function toRegExp(source: string, flags: string): RegExp {
  try {
    return new RegExp(source, flags)
  } catch (error) {
    throw new Error(`is not a valid regular expression: ${(error as Error).message}`, { cause: error })
  }
}
