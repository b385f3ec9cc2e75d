/**
 * File patterns as people write them in ignore files. One without a slash is the name of a file or folder at any depth;
 * one with a slash is a path from the top. Both cover all that is below what they name. `*` and `?` stop at slashes; `**`
 * stands for any number of folders. Paths may be the agent's to choose, so none takes longer than its length allows.
 */
export function matchesGlobs(globs: readonly string[]): (path: string) => boolean {
  // Most patterns are plain names at any depth: one look-up for all of them keeps long lists cheap.
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

/** The same for git: pathspecs that leave out what the patterns cover. */
export function toExcludingPathspecs(globs: readonly string[]): string[] {
  return globs.flatMap((glob) => {
    const anchored = toAnchored(glob)
    return [`:(exclude,glob)${anchored}`, `:(exclude,glob)${anchored}/**`]
  })
}

/** One name of a pattern. */
interface Part {
  text: string
  isPlain: boolean
  /** What a name must begin and end with. */
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
 * Whether a pattern with parts that stand for anything covers all of what is given. Only the last such part has to be
 * stretched further when something does not fit, so this takes at most the product of both lengths.
 */
function covers<T>(
  pattern: readonly T[],
  given: readonly string[],
  isAnything: (part: T) => boolean,
  matches: (part: T, value: string) => boolean,
): boolean {
  let [at, to] = [0, 0]
  let stretch: { at: number; to: number } | undefined
  while (to < given.length) {
    const part = pattern[at]
    if (part !== undefined && isAnything(part)) {
      stretch = { at, to }
      at += 1
    } else if (part !== undefined && matches(part, given[to]!)) {
      at += 1
      to += 1
    } else if (stretch !== undefined) {
      stretch.to += 1
      at = stretch.at + 1
      to = stretch.to
    } else return false
  }
  return pattern.slice(at).every(isAnything)
}

function toAnchored(glob: string): string {
  const trimmed = glob.replace(/\/+$/, '')
  return trimmed.includes('/') ? trimmed.replace(/^\/+/, '') : `**/${trimmed}`
}
