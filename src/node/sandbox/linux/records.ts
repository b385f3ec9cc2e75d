import { randomUUID } from 'node:crypto'
import { lstat, readFile, readdir, rename, rmdir, unlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf } from '../../../lib/fs/errno.ts'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { SandboxInfo, SandboxSpec } from '../runtimes/runtime.ts'
import type { CgroupFolders } from './limits/cgroups.ts'
import { identify, type ProcessRef } from './process/processes.ts'

const FILE = 'sandbox.json'
const ID = /^[A-Za-z0-9][A-Za-z0-9-]{0,62}$/
/** A folder that is not one yet or not any more, by the process that makes or removes it. */
const UNNAMED = /^\.(\d+)-[0-9a-f-]{36}$/

/** What is written down about a sandbox, so that a process that knows nothing of it can take it away. */
export interface SandboxRecord extends SandboxInfo {
  schemaVersion: 1
  /** Tells it from one of the same id elsewhere or at another time. */
  token: string
  /** Ending these ends all of it. */
  processes: readonly ProcessRef[]
  cgroup?: CgroupFolders
  /** What it was started from, which must stay as long as it is there. */
  snapshot?: string
}

/** The folders of one runtime's sandboxes: `sandboxes/<id>` for each, with its record. */
export class Records {
  readonly #dir: string

  constructor(dir: string) {
    this.#dir = join(dir, 'sandboxes')
  }

  folderOf(id: string): string {
    if (!ID.test(id)) throw new RolloutError('runtime.unsupported', 'A sandbox id is letters, digits and dashes')
    return join(this.#dir, id)
  }

  /** Makes the folder and its record; the id must not be in use. */
  async create(spec: SandboxSpec, now: number): Promise<SandboxRecord> {
    const folder = this.folderOf(spec.id)
    await makeDirectories(this.#dir, 0o700)
    // Complete before it has its name, so that nobody finds one that is half there.
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
      ...(snapshot !== undefined && { snapshot }),
    }
    await makeDirectories(draft, 0o700)
    await writeFile(join(draft, FILE), JSON.stringify(record), { mode: 0o600 })
    try {
      await rename(draft, folder)
    } catch (error) {
      await removeTree(draft)
      const code = errnoOf(error)
      if (code !== 'EEXIST' && code !== 'ENOTEMPTY') throw error
      throw new RolloutError('runtime.start-failed', `There is a sandbox ${spec.id} already`, { cause: error })
    }
    return record
  }

  async write(record: SandboxRecord): Promise<void> {
    const path = join(this.folderOf(record.id), FILE)
    const draft = `${path}.${randomUUID()}`
    await writeFile(draft, JSON.stringify(record), { mode: 0o600 })
    await rename(draft, path)
  }

  /** Undefined when there is none. */
  async load(id: string): Promise<SandboxRecord | undefined> {
    try {
      return JSON.parse(await readFile(join(this.folderOf(id), FILE), 'utf8'))
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined
      throw error
    }
  }

  /** Removes, too, what processes that are gone were just making or removing: nothing runs in those. */
  async list(): Promise<SandboxInfo[]> {
    await this.#sweep()
    const records = await this.#all()
    return records.map(({ id, labels, leaseUntil, startedAt }) => ({ id, labels, leaseUntil, startedAt }))
  }

  /** What sandboxes were started from. */
  async snapshotsInUse(): Promise<ReadonlySet<string>> {
    return new Set((await this.#all()).map(({ snapshot }) => snapshot).filter((name) => name !== undefined))
  }

  /** Takes the folder away under another name, so that the id is free at once, and then removes it. */
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
 * Removes a tree that a hostile program may have made: directories nobody may enter, and deeper than a path can say. No
 * process may be left that could still change it.
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

/** What a process of its own would cost more for. */
const SMALL_ENTRIES = 64
const SMALL_DEPTH = 8

/** False where there is more than a little, or anything that is not plain: then the rest is for others to remove. */
async function removeSmallTree(path: string): Promise<boolean> {
  let left = SMALL_ENTRIES
  const remove = async (place: string, device: number, depth: number): Promise<void> => {
    const stats = await lstat(place)
    if ((left -= 1) < 0 || depth > SMALL_DEPTH || stats.dev !== device) throw new RangeError('more than a little')
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
