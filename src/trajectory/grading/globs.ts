/**
 * File patterns as people write them in ignore files. One without a slash is the name of a file or folder at any depth;
 * one with a slash is a path from the top. Both cover all that is below what they name. `*` and `?` stop at slashes, `**`
 * does not.
 */
export function matchesGlobs(globs: readonly string[]): (path: string) => boolean {
  const patterns = globs.map(toPattern)
  return (path) => patterns.some((pattern) => pattern.test(path))
}

/** The same for git: pathspecs that leave out what the patterns cover. */
export function toExcludingPathspecs(globs: readonly string[]): string[] {
  return globs.flatMap((glob) => {
    const anchored = toAnchored(glob)
    return [`:(exclude,glob)${anchored}`, `:(exclude,glob)${anchored}/**`]
  })
}

function toPattern(glob: string): RegExp {
  const source = toAnchored(glob).replaceAll(/\*\*\/|\*\*|\*|\?|[.+^${}()|[\]\\]/g, (part) => {
    switch (part) {
      case '**/':
        return '(?:.*/)?'
      case '**':
        return '.*'
      case '*':
        return '[^/]*'
      case '?':
        return '[^/]'
    }
    return `\\${part}`
  })
  return new RegExp(`^${source}(?:/.*)?$`, 's')
}

function toAnchored(glob: string): string {
  const trimmed = glob.replace(/\/+$/, '')
  return trimmed.includes('/') ? trimmed.replace(/^\/+/, '') : `**/${trimmed}`
}
