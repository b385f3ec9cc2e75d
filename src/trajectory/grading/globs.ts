/**
 * Matches paths against patterns in the style of ignore files. A pattern without a slash matches a file or folder name at any
 * depth; a pattern with a slash matches a path from the root. Both also match everything below. `*` and `?` do not match
 * slashes; `**` matches any number of folders. The agent may choose the paths, so the time is bounded by their length.
 */
export function matchesGlobs(globs: readonly string[]): (path: string) => boolean {
  // Most patterns are plain names at any depth. One lookup for all of them keeps long lists cheap.
  const plain = new Set<string>()
  const patterns: Part[][] = []
  for (const glob of globs) {
    const parts = toAnchored(glob).split('/').map(toPart)
    const [first, name] = parts
    if (parts.length === 2 && first!.text === '**' && name!.isPlain) plain.add(name!.text)
    else patterns.push([...parts, toPart('**')])
  }
  return (path) => {
    const names = path.split('/')
    return (
      names.some((name) => plain.has(name)) ||
      patterns.some((pattern) => covers(pattern, names, isAnyFolders, matchesName))
    )
  }
}

/** Returns git pathspecs that exclude the files that the patterns match. */
export function toExcludingPathspecs(globs: readonly string[]): string[] {
  return globs.flatMap((glob) => {
    const anchored = toAnchored(glob)
    return [`:(exclude,glob)${anchored}`, `:(exclude,glob)${anchored}/**`]
  })
}

/** One path segment of a pattern. */
interface Part {
  text: string
  isPlain: boolean
  /** Required start and end of a name. */
  prefix: string
  suffix: string
  letters: readonly string[]
}

function toPart(text: string): Part {
  const pieces = text.split(/[*?]/)
  return { text, isPlain: pieces.length === 1, prefix: pieces[0]!, suffix: pieces.at(-1)!, letters: [...text] }
}

function isAnyFolders({ text }: Part): boolean {
  return text === '**'
}

function matchesName({ text, isPlain, prefix, suffix, letters }: Part, name: string): boolean {
  if (text === name) return true
  if (isPlain || !name.startsWith(prefix) || !name.endsWith(suffix)) return false
  return covers(letters, [...name], isAnyLetters, matchesLetter)
}

function isAnyLetters(part: string): boolean {
  return part === '*'
}

function matchesLetter(part: string, letter: string): boolean {
  return part === '?' || part === letter
}

/**
 * Whether a pattern with wildcard parts matches all of `given`. On a mismatch only the last wildcard must be extended, so the
 * time is at most the product of both lengths.
 */
function covers<T>(
  pattern: readonly T[],
  given: readonly string[],
  isAnything: (part: T) => boolean,
  matches: (part: T, value: string) => boolean,
): boolean {
  let [at, to] = [0, 0]
  let wildcard: { at: number; to: number } | undefined
  while (to < given.length) {
    const part = pattern[at]
    if (part !== undefined && isAnything(part)) {
      wildcard = { at, to }
      at += 1
    } else if (part !== undefined && matches(part, given[to]!)) {
      at += 1
      to += 1
    } else if (wildcard !== undefined) {
      wildcard.to += 1
      at = wildcard.at + 1
      to = wildcard.to
    } else return false
  }
  return pattern.slice(at).every(isAnything)
}

function toAnchored(glob: string): string {
  const trimmed = glob.replace(/\/+$/, '')
  return trimmed.includes('/') ? trimmed.replace(/^\/+/, '') : `**/${trimmed}`
}
