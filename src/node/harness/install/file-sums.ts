import { createHash, hash } from 'node:crypto'
import { createReadStream, lstatSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { join, relative } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { setImmediate } from 'node:timers/promises'

/** The content and mode of one file of a tree. */
export interface FileSum {
  /** Relative to the root of the tree, with slashes. */
  path: string
  /** Permissions in octal; `link` for a symbolic link, whose sum is that of its target path. */
  mode: string
  bytes: number
  sha256: string
}

/**
 * Sums all files and links of a tree, ordered by path. Throws if the tree contains other kinds of files. Small files are read
 * synchronously: asynchronous calls take most of the CPU time of a tree with ten thousands of them.
 */
export async function sumFiles(root: string, { except }: { except: readonly string[] }): Promise<FileSum[]> {
  const entries = readdirSync(root, { recursive: true, withFileTypes: true })
  const paths = entries.filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name))
  const names = paths.map((path) => relative(root, path)).filter((name) => !except.includes(name))
  const sums: FileSum[] = []
  for (const [i, name] of names.entries()) {
    if (i % FILES_PER_TICK === 0) await setImmediate()
    sums.push(await sumFile(join(root, name), name))
  }
  return sums.sort((a, b) => (a.path < b.path ? -1 : 1))
}

/** Files between two pauses, in which other work of the process continues. */
const FILES_PER_TICK = 100

async function sumFile(path: string, name: string): Promise<FileSum> {
  const info = lstatSync(path)
  if (info.isSymbolicLink()) {
    const target = readlinkSync(path)
    return { path: name, mode: 'link', bytes: Buffer.byteLength(target), sha256: digest(target) }
  }
  if (!info.isFile()) throw new Error(`${path} is neither a file nor a link`)
  const sha256 = info.size > SMALL ? await hashFile(path) : digest(readFileSync(path))
  return { path: name, mode: (info.mode & 0o777).toString(8), bytes: info.size, sha256 }
}

/** Smaller files are read at once, which is faster than a stream. */
const SMALL = 1 << 20

function digest(data: string | Buffer): string {
  return hash('sha256', data)
}

export async function hashFile(path: string): Promise<string> {
  const sum = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), sum)
  return sum.digest('hex')
}

/** Renders one line per file. The sum of this text identifies the whole tree. */
export function renderSums(sums: readonly FileSum[]): string {
  return sums.map(({ path, mode, bytes, sha256 }) => `${sha256} ${mode} ${bytes} ${JSON.stringify(path)}\n`).join('')
}

/** Throws on a line that `renderSums` does not write. */
export function parseSums(text: string): FileSum[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [, sha256, mode, bytes, path] = /^([0-9a-f]{64}) ([0-7]{3}|link) (\d+) (".*")$/.exec(line) ?? []
      if (sha256 === undefined || mode === undefined || path === undefined)
        throw new Error(`invalid line in the sums of files: ${line}`)
      return { sha256, mode, bytes: Number(bytes), path: JSON.parse(path) as string }
    })
}

/** Returns the differences between two lists of sums, each with its path. */
export function compareSums(expected: readonly FileSum[], actual: readonly FileSum[]): string[] {
  const left = new Map(actual.map((sum) => [sum.path, sum]))
  const problems = expected.flatMap((sum) => {
    const found = left.get(sum.path)
    left.delete(sum.path)
    if (found === undefined) return `${sum.path} is missing`
    if (found.sha256 !== sum.sha256) return `${sum.path} was changed`
    return found.mode === sum.mode ? [] : `${sum.path} has mode ${found.mode}, not ${sum.mode}`
  })
  return [...problems, ...[...left.keys()].map((path) => `${path} does not belong there`)]
}
