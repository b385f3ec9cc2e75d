import { createReadStream } from 'node:fs'
import { lstat, mkdir, readdir, rm } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { Artifacts } from './artifacts.ts'
import type { CopyLimits, Sandbox } from '../sandbox/runtimes/runtime.ts'

/** Of one folder. A conversation is some megabytes at most; one that has more than this is up to something. */
const LIMITS: CopyLimits = { maxBytes: 32 * 1024 * 1024, maxFiles: 500 }
/** Names below `harness` that a path may have before its last. */
const MOST_FOLDERS = 3

export interface HarnessLogs {
  sandbox: Pick<Sandbox, 'download'>
  /** The harness's, as the sandbox sees it. */
  home: string
  /** Below it; any may be missing. */
  folders: readonly string[]
  artifacts: Artifacts
  /** For copies, while they are looked at. Made, and removed again; no sandbox sees it. */
  scratch: string
}

/**
 * Keeps what a harness wrote about its own run. It is for people, and written where the agent could write too: nothing is
 * followed or believed, and what cannot be copied is said in a file of its own and has no bearing on the session.
 */
export async function keepHarnessLogs(logs: HarnessLogs, signal: AbortSignal): Promise<void> {
  const { sandbox, home, folders, artifacts, scratch } = logs
  const problems: string[] = []
  await mkdir(scratch, { recursive: true, mode: 0o700 })
  try {
    for (const [index, folder] of folders.entries()) {
      const copy = join(scratch, String(index))
      try {
        await sandbox.download(posix.join(home, folder), copy, LIMITS, signal)
        await keepTree(copy, artifacts)
      } catch (error) {
        if (!isMissing(error)) problems.push(`${folder}: ${error instanceof Error ? error.message : String(error)}\n`)
      }
    }
    if (problems.length > 0) await artifacts.write('harness/not-kept.txt', problems.join(''))
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof RolloutError && error.code === 'workspace.file-missing'
}

async function keepTree(root: string, artifacts: Artifacts): Promise<void> {
  // A link in the place of the folder was copied as a link, and would lead to whatever it says on this machine.
  if (!(await lstat(root)).isDirectory()) throw new TypeError('it is not a folder')
  const taken = new Set<string>()
  for await (const parts of filesBelow(root)) {
    await artifacts.copy(freeName(parts, taken), createReadStream(join(root, ...parts)))
  }
}

/** Plain files only, in a fixed order. Folders that are links are not entered. */
async function* filesBelow(root: string, above: readonly string[] = []): AsyncGenerator<readonly string[]> {
  const entries = await readdir(join(root, ...above), { withFileTypes: true })
  for (const entry of entries.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
    const parts = [...above, entry.name]
    if (entry.isDirectory()) yield* filesBelow(root, parts)
    else if (entry.isFile()) yield parts
  }
}

/** As it is called in the sandbox, as far as an artifact may be called so. */
function freeName(parts: readonly string[], taken: Set<string>): string {
  const folders = parts.slice(0, MOST_FOLDERS)
  const below = parts.length > MOST_FOLDERS ? [parts.slice(MOST_FOLDERS).join('_')] : []
  const name = ['harness', ...[...folders, ...below].map(plainName)].join('/')
  for (let count = 1; ; count++) {
    const free = count === 1 ? name : `${name}-${count}`
    if (taken.has(free)) continue
    taken.add(free)
    return free
  }
}

function plainName(name: string): string {
  return name
    .replaceAll(/[^A-Za-z0-9._-]/g, '_')
    .replace(/^[.-]/, '_')
    .slice(-180)
    .replace(/^[.-]/, '_')
}
