import { createReadStream } from 'node:fs'
import { lstat, mkdir, readdir, rm } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { Artifacts } from './artifacts.ts'
import type { CopyLimits, Sandbox } from '../sandbox/runtimes/runtime.ts'

/** Limits of one folder. A conversation has some megabytes at most. */
const LIMITS: CopyLimits = { maxBytes: 32 * 1024 * 1024, maxFiles: 500 }
/** Maximum depth of folders below `harness`. */
const MAX_DEPTH = 3

export interface HarnessLogs {
  sandbox: Pick<Sandbox, 'download'>
  /** The HOME of the harness, as a path in the sandbox. */
  home: string
  /** Relative to `home`; each may be missing. */
  folders: readonly string[]
  artifacts: Artifacts
  /** Temporary folder for the copies, which is created and removed. No sandbox can access it. */
  scratch: string
}

/**
 * Copies the logs of a harness to the artifacts. The agent could write to the logs, so links are not followed and contents
 * are not interpreted. Errors are written to an artifact and do not affect the session.
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
  // A link was copied as a link, and its target would be a path of this machine.
  if (!(await lstat(root)).isDirectory()) throw new TypeError('not a folder')
  const used = new Set<string>()
  for await (const parts of filesBelow(root)) {
    await artifacts.copy(freeName(parts, used), createReadStream(join(root, ...parts)))
  }
}

/** Yields regular files in a fixed order. Does not follow links. */
async function* filesBelow(root: string, above: readonly string[] = []): AsyncGenerator<readonly string[]> {
  const entries = await readdir(join(root, ...above), { withFileTypes: true })
  for (const entry of entries.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
    const parts = [...above, entry.name]
    if (entry.isDirectory()) yield* filesBelow(root, parts)
    else if (entry.isFile()) yield parts
  }
}

/** Returns the name of the file in the sandbox, with the characters that an artifact path allows, made unique. */
function freeName(parts: readonly string[], used: Set<string>): string {
  const folders = parts.slice(0, MAX_DEPTH)
  const below = parts.length > MAX_DEPTH ? [parts.slice(MAX_DEPTH).join('_')] : []
  const name = ['harness', ...[...folders, ...below].map(plainName)].join('/')
  for (let count = 1; ; count++) {
    const free = count === 1 ? name : `${name}-${count}`
    if (used.has(free)) continue
    used.add(free)
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
