import { randomUUID } from 'node:crypto'
import { mkdir, readdir, readFile, rename, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../../../../lib/fs/errno.ts'
import { makeDirectories } from '../../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { removeTree } from '../records.ts'

const NAME = /^[A-Za-z0-9][\w-]{0,127}$/
const FILE = 'snapshot.json'
const DAY_MS = 24 * 60 * 60 * 1000

/** Config keys that every runtime with snapshots has. */
export const snapshotConfig = {
  snapshotsMaxGb: z
    .number()
    .positive()
    .default(50)
    .describe('Disk limit of prepared workspaces; the least recently used ones are removed first'),
  snapshotsMaxDays: z
    .number()
    .positive()
    .default(14)
    .describe('Prepared workspaces that were not used for this long are removed'),
}

export interface SnapshotLimits {
  snapshotsMaxGb: number
  snapshotsMaxDays: number
}

const About = z.object({
  schemaVersion: z.literal(1),
  /** Size without the snapshots below. */
  bytes: z.number(),
  /** Names of the snapshots that this one is based on. */
  below: z.array(z.string()),
})
type About = z.infer<typeof About>

interface Known extends About {
  name: string
  usedAt: number
}

interface SnapshotsDeps {
  now(): number
  /** Names of the snapshots that sandboxes use, including sandboxes of dead processes. */
  inUse(): Promise<ReadonlySet<string>>
  /** Removes data of the snapshot outside of its folder. False if it is still in use. */
  discard?(name: string): Promise<boolean>
}

/**
 * Snapshots of a runtime: `snapshots/<name>`. Number and age are limited: adding a snapshot removes the least recently
 * used ones, except those that a sandbox or another snapshot uses.
 */
export class Snapshots implements AsyncDisposable {
  readonly #dir: string
  readonly #limits: SnapshotLimits
  readonly #deps: SnapshotsDeps
  #pruning: Promise<string[]> = Promise.resolve([])

  constructor(dir: string, limits: SnapshotLimits, deps: SnapshotsDeps) {
    this.#dir = join(dir, 'snapshots')
    this.#limits = limits
    this.#deps = deps
  }

  folderOf(name: string): string {
    if (NAME.test(name)) return join(this.#dir, name)
    throw new RolloutError('runtime.unsupported', 'The name of a snapshot may contain only letters, digits and dashes')
  }

  async has(name: string): Promise<boolean> {
    return (await this.#load(this.folderOf(name))) !== undefined
  }

  /**
   * Returns the names of the snapshot and of those it is based on, and marks all of them as used. The sandbox must have
   * a record before, so that the snapshot is not removed meanwhile.
   */
  async use(name: string): Promise<string[]> {
    const missing = (cause?: unknown) =>
      new RolloutError('runtime.image-missing', `Snapshot ${name} does not exist on this node`, { cause })
    const about = await this.#load(this.folderOf(name))
    if (about === undefined) throw missing()
    const names = [name, ...about.below]
    const now = this.#deps.now() / 1000
    for (const each of names)
      await utimes(join(this.folderOf(each), FILE), now, now).catch((cause: unknown) => {
        throw missing(cause)
      })
    return names
  }

  /**
   * Stores what `fill` writes to the draft folder. `fill` returns the size if it writes elsewhere. An existing snapshot
   * stays unchanged.
   */
  async add(name: string, below: readonly string[], fill: (draft: string) => Promise<number | void>): Promise<void> {
    const folder = this.folderOf(name)
    if (await this.has(name)) return
    await makeDirectories(this.#dir, 0o700)
    const draft = join(this.#dir, `.${randomUUID()}`)
    await mkdir(draft, { mode: 0o700 })
    try {
      const bytes = (await fill(draft)) ?? (await sizeOf(draft))
      const about: About = { schemaVersion: 1, bytes, below: [...below] }
      await writeFile(join(draft, FILE), JSON.stringify(about), { mode: 0o600 })
      const now = this.#deps.now() / 1000
      await utimes(join(draft, FILE), now, now)
      await rename(draft, folder)
    } catch (error) {
      await removeTree(draft)
      // Another process stored the same snapshot meanwhile.
      if (!['EEXIST', 'ENOTEMPTY'].includes(errnoOf(error) ?? '')) throw error
    }
    // The caller does not wait for the removal, and its failure is not the caller's.
    this.prune(name).catch(() => {})
  }

  /** Removes the folder of a snapshot whose data is gone. */
  async forget(name: string): Promise<void> {
    await removeTree(this.folderOf(name))
  }

  /** Removes a snapshot unless something uses it. An unknown name is no error. */
  async remove(name: string): Promise<void> {
    if (!(await this.has(name))) return
    const needed = new Set([...(await this.#deps.inUse()), ...(await this.#list()).flatMap(({ below }) => below)])
    if (!needed.has(name)) await this.#remove(name)
  }

  /**
   * Removes snapshots that are too old or exceed the size limit, and returns their names. Keeps `newest`, which no
   * sandbox has used yet.
   */
  prune(newest?: string): Promise<string[]> {
    const pruning = this.#pruning.catch(() => []).then(() => this.#prune(newest))
    this.#pruning = pruning
    return pruning
  }

  async #prune(newest: string | undefined): Promise<string[]> {
    const now = this.#deps.now()
    await this.#sweepDrafts(now)
    let kept = await this.#list()
    const removed: string[] = []
    const isOld = ({ usedAt }: Known) => now - usedAt > this.#limits.snapshotsMaxDays * DAY_MS
    for (;;) {
      const tooMuch = kept.reduce((total, { bytes }) => total + bytes, 0) > this.#limits.snapshotsMaxGb * 1024 ** 3
      const needed = new Set([newest, ...(await this.#deps.inUse()), ...kept.flatMap(({ below }) => below)])
      const next = kept.find((each) => !needed.has(each.name) && (tooMuch || isOld(each)))
      if (next === undefined) return removed
      kept = kept.filter((each) => each !== next)
      if (await this.#remove(next.name)) removed.push(next.name)
    }
  }

  /** Renames the snapshot first, so that no new sandbox can use it. A sandbox that was faster has a record by then. */
  async #remove(name: string): Promise<boolean> {
    const trash = join(this.#dir, `.${randomUUID()}`)
    await rename(this.folderOf(name), trash)
    const isWanted = (await this.#deps.inUse()).has(name)
    if (isWanted || (await this.#deps.discard?.(name)) === false) {
      await rename(trash, this.folderOf(name)).catch(() => removeTree(trash))
      return false
    }
    await removeTree(trash)
    return true
  }

  /** Returns the least recently used first. */
  async #list(): Promise<Known[]> {
    const names = await readdir(this.#dir).catch(() => [])
    const all = names
      .filter((name) => NAME.test(name))
      .map(async (name): Promise<Known | undefined> => {
        const about = await this.#load(join(this.#dir, name))
        const file = await stat(join(this.#dir, name, FILE)).catch(() => undefined)
        return about === undefined || file === undefined ? undefined : { ...about, name, usedAt: file.mtimeMs }
      })
    const known = (await Promise.all(all)).filter((each) => each !== undefined)
    return known.toSorted((a, b) => a.usedAt - b.usedAt || b.below.length - a.below.length)
  }

  /** Removes folders that dead processes were creating or removing. */
  async #sweepDrafts(now: number): Promise<void> {
    for (const name of await readdir(this.#dir).catch(() => [])) {
      if (!name.startsWith('.')) continue
      const folder = await stat(join(this.#dir, name)).catch(() => undefined)
      if (folder !== undefined && now - folder.ctimeMs > DAY_MS) await removeTree(join(this.#dir, name))
    }
  }

  async #load(folder: string): Promise<About | undefined> {
    const text = await readFile(join(folder, FILE), 'utf8').catch(() => undefined)
    return text === undefined ? undefined : About.parse(JSON.parse(text))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pruning.catch(() => {})
  }
}

/** Returns the disk usage in bytes. */
async function sizeOf(folder: string): Promise<number> {
  const { stdout } = await runProgram(['du', '-sk', '--', folder], { env: { PATH: '/usr/bin:/bin' } })
  const kilobytes = Number.parseInt(stdout, 10)
  return Number.isSafeInteger(kilobytes) ? kilobytes * 1024 : 0
}
