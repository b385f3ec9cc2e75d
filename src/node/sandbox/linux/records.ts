import { randomUUID } from 'node:crypto'
import { lstat, readFile, readdir, rename, rmdir, unlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf, ignoreErrno } from '../../../lib/fs/errno.ts'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { SandboxInfo, SandboxSpec } from '../runtimes/runtime.ts'
import type { CgroupFolders } from './limits/cgroups.ts'
import { identify, type ProcessRef } from './process/processes.ts'

const FILE = 'sandbox.json'
const ID = /^[A-Za-z0-9][A-Za-z0-9-]{0,62}$/
/** Name of a folder that is being created or removed by the process with this pid. */
const UNNAMED = /^\.(\d+)-[0-9a-f-]{36}$/

/** Stored data of a sandbox, with which another process can remove it. */
export interface SandboxRecord extends SandboxInfo {
  schemaVersion: 1
  /** Distinguishes sandboxes with the same id. */
  token: string
  /** Killing these processes ends all others. */
  processes: readonly ProcessRef[]
  cgroup?: CgroupFolders
  /** Snapshot that the sandbox uses; it must not be removed. */
  snapshot?: string
}

/** The folders of one runtime's sandboxes: `sandboxes/<id>`, each with a record. */
export class Records {
  readonly #dir: string

  constructor(dir: string) {
    this.#dir = join(dir, 'sandboxes')
  }

  folderOf(id: string): string {
    if (!ID.test(id))
      throw new RolloutError('runtime.unsupported', 'A sandbox id may contain only letters, digits and dashes')
    return join(this.#dir, id)
  }

  /** Creates the folder and its record. Throws if the id is in use. */
  async create(spec: SandboxSpec, now: number): Promise<SandboxRecord> {
    const folder = this.folderOf(spec.id)
    await makeDirectories(this.#dir, 0o700)
    // Renamed when complete, so that no process finds an incomplete folder.
    const draft = this.#unnamed()
    const { id, labels, leaseUntil, snapshot } = spec
    const record: SandboxRecord = {
      schemaVersion: 1,
      token: randomUUID(),
      id,
      labels,
      leaseUntil,
      startedAt: now,
      processes: [],
      snapshot,
    }
    await makeDirectories(draft, 0o700)
    await writeFile(join(draft, FILE), JSON.stringify(record), { mode: 0o600 })
    try {
      await rename(draft, folder)
    } catch (error) {
      await removeTree(draft)
      const code = errnoOf(error)
      if (code !== 'EEXIST' && code !== 'ENOTEMPTY') throw error
      throw new RolloutError('runtime.start-failed', `Sandbox ${spec.id} already exists`, { cause: error })
    }
    return record
  }

  async write(record: SandboxRecord): Promise<void> {
    const path = join(this.folderOf(record.id), FILE)
    const draft = `${path}.${randomUUID()}`
    await writeFile(draft, JSON.stringify(record), { mode: 0o600 })
    await rename(draft, path)
  }

  /** Returns undefined if there is no such sandbox. */
  async load(id: string): Promise<SandboxRecord | undefined> {
    const text = await readFile(join(this.folderOf(id), FILE), 'utf8').catch(ignoreErrno('ENOENT'))
    return text === undefined ? undefined : JSON.parse(text)
  }

  /** Also removes folders that dead processes were creating or removing; no process runs in those. */
  async list(): Promise<SandboxInfo[]> {
    await this.#sweep()
    const records = await this.#all()
    return records.map(({ id, labels, leaseUntil, startedAt }) => ({ id, labels, leaseUntil, startedAt }))
  }

  /** Names of the snapshots that sandboxes use. */
  async snapshotsInUse(): Promise<ReadonlySet<string>> {
    return new Set((await this.#all()).map(({ snapshot }) => snapshot).filter((name) => name !== undefined))
  }

  /** Renames the folder first, so that the id is free at once. */
  async remove(id: string): Promise<void> {
    const trash = this.#unnamed()
    try {
      await rename(this.folderOf(id), trash)
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return
      throw error
    }
    await removeTree(trash)
  }

  #unnamed(): string {
    return join(this.#dir, `.${process.pid}-${randomUUID()}`)
  }

  async #sweep(): Promise<void> {
    for (const name of await readdir(this.#dir).catch(() => [])) {
      const [, owner] = UNNAMED.exec(name) ?? []
      if (owner !== undefined && (await identify(Number(owner))) === undefined) await removeTree(join(this.#dir, name))
    }
  }

  async #all(): Promise<SandboxRecord[]> {
    const names = await readdir(this.#dir).catch(() => [])
    const records = await Promise.all(names.filter((name) => ID.test(name)).map((name) => this.load(name)))
    return records.filter((record) => record !== undefined)
  }
}

/**
 * Removes a tree of a hostile program: folders without permissions, and paths longer than the system's limit. No
 * process may be left that could change the tree.
 */
export async function removeTree(path: string): Promise<void> {
  if (await removeSmallTree(path)) return
  const env = { PATH: '/usr/bin:/bin' }
  const first = await runProgram(['rm', '-rf', '--one-file-system', '--', path], { env })
  if (first.exitCode === 0) return
  await runProgram(['chmod', '-R', 'u+rwx', '--', path], { env })
  const second = await runProgram(['rm', '-rf', '--one-file-system', '--', path], { env })
  if (second.exitCode !== 0) throw new RolloutError('runtime.start-failed', `Cannot remove ${path}: ${second.stderr}`)
}

/** Limits of a tree that this process removes by itself; a larger one is removed by `rm`. */
const SMALL_ENTRIES = 64
const SMALL_DEPTH = 8

/** Returns false for a large or unusual tree; `rm` then removes the rest. */
async function removeSmallTree(path: string): Promise<boolean> {
  let left = SMALL_ENTRIES
  const remove = async (place: string, device: number, depth: number): Promise<void> => {
    const stats = await lstat(place)
    if ((left -= 1) < 0 || depth > SMALL_DEPTH || stats.dev !== device) throw new RangeError('too large')
    if (!stats.isDirectory()) return unlink(place)
    for (const name of await readdir(place)) await remove(join(place, name), device, depth + 1)
    await rmdir(place)
  }
  try {
    await remove(path, (await lstat(path)).dev, 0)
    return true
  } catch (error) {
    return errnoOf(error) === 'ENOENT'
  }
}
