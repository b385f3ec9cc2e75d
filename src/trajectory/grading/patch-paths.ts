export interface PatchPaths {
  /** Every file that the patch names, by its old and its new path. */
  touched: Set<string>
  /** New paths in the order of the patch, without deleted files. */
  results: string[]
}

/**
 * Returns the files of a trusted patch, such as a dataset's, by its headers. Not for a patch of the agent: another program may
 * read its headers differently. Use git to find the files that such a patch changes.
 */
export function pathsOfPatch(patch: string): PatchPaths {
  const touched = new Set<string>()
  const results = new Set<string>()
  const lines = patch.split('\n')
  // In a patch with git headers, other headers are lines of a hunk.
  const hasGitHeaders = lines.some((line) => line.startsWith('diff --git '))
  for (const [index, line] of lines.entries()) {
    const next = lines[index + 1] ?? ''
    if (hasGitHeaders ? !line.startsWith('diff --git ') : !line.startsWith('--- ') || !next.startsWith('+++ ')) continue
    const [before, after] = hasGitHeaders
      ? namesOf(line.slice('diff --git '.length))
      : [nameAfter(line), nameAfter(next)]
    if (before !== undefined) touched.add(before)
    if (after === undefined) continue
    touched.add(after)
    if (!isDeleted(lines, index)) results.add(after)
  }
  return { touched, results: [...results] }
}

/** Returns both names of `a/x b/x`, quoted or not. Unquoted names with blanks are split in the middle: both are equal. */
function namesOf(text: string): (string | undefined)[] {
  const quoted = text.match(/^("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)$/)
  if (quoted !== null) return [clean(quoted[1]!, 'a/'), clean(quoted[2]!, 'b/')]
  const middle = (text.length - 1) / 2
  return [clean(text.slice(0, middle), 'a/'), clean(text.slice(middle + 1), 'b/')]
}

function nameAfter(line: string): string | undefined {
  const name = line.slice(4).split('\t')[0]!.trimEnd()
  return name === '/dev/null' ? undefined : clean(name, line.startsWith('---') ? 'a/' : 'b/')
}

function clean(name: string, prefix: string): string | undefined {
  const plain = name.startsWith('"') ? unquote(name) : name
  if (plain === '/dev/null' || plain === '') return undefined
  return plain.startsWith(prefix) ? plain.slice(prefix.length) : plain
}

/** Decodes git's quoting: C escapes and octal bytes. */
function unquote(name: string): string {
  const bytes: Buffer[] = []
  const simple: Record<string, string> = { n: '\n', t: '\t', r: '\r', a: '\x07', b: '\b', f: '\f', v: '\v' }
  for (const [, octal, escaped, plain] of name.slice(1, -1).matchAll(/\\([0-7]{3})|\\(.)|([^\\]+)/gs)) {
    if (octal !== undefined) bytes.push(Buffer.from([Number.parseInt(octal, 8)]))
    else if (escaped !== undefined) bytes.push(Buffer.from(simple[escaped] ?? escaped))
    else bytes.push(Buffer.from(plain ?? ''))
  }
  return Buffer.concat(bytes).toString('utf8')
}

function isDeleted(lines: readonly string[], header: number): boolean {
  for (const line of lines.slice(header + 1, header + 6)) {
    if (line.startsWith('deleted file mode')) return true
    if (line.startsWith('diff --git ') || line.startsWith('@@')) return false
  }
  return false
}
