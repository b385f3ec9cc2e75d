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

/** Keys of a runtime's config. */
export const snapshotConfig = {
  snapshotsMaxGb: z
    .number()
    .positive()
    .default(50)
    .describe('Most that prepared workspaces may take on disk; those unused for longest are removed first'),
  snapshotsMaxDays: z
    .number()
    .positive()
    .default(14)
    .describe('Prepared workspaces that nobody has started from for so long are removed'),
}

export interface SnapshotLimits {
  snapshotsMaxGb: number
  snapshotsMaxDays: number
}

const About = z.object({
  schemaVersion: z.literal(1),
  /** Of its own; what it stands on is counted there. */
  bytes: z.number(),
  /** Names of the snapshots it stands on. */
  below: z.array(z.string()),
})
type About = z.infer<typeof About>

interface Known extends About {
  name: string
  usedAt: number
}

interface SnapshotsDeps {
  now(): number
  /** The names that sandboxes stand on, also those of processes that died. */
  inUse(): Promise<ReadonlySet<string>>
  /** Takes away what is not in its folder. False: it cannot go yet. */
  discard?(name: string): Promise<boolean>
}

/**
 * What a runtime keeps for later sandboxes to start from: `snapshots/<name>` for each. How much and how long is limited:
 * whenever one is added, those that were not used for longest go, but never one that a sandbox or another one stands on.
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
    throw new RolloutError('runtime.unsupported', 'The name of a snapshot is letters, digits and dashes')
  }

  async has(name: string): Promise<boolean> {
    return (await this.#load(this.folderOf(name))) !== undefined
  }

  /** The names it consists of, itself first, all of which count as used now. Its user must be on record already. */
  async use(name: string): Promise<string[]> {
    const missing = (cause?: unknown) =>
      new RolloutError('runtime.image-missing', `There is no snapshot ${name} here`, { cause })
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
   * Keeps what `fill` puts into the folder it is given, or elsewhere: then it says how many bytes that is. A name that is
   * taken stays what it is.
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
      // Somebody else kept the same meanwhile.
      if (!['EEXIST', 'ENOTEMPTY'].includes(errnoOf(error) ?? '')) throw error
    }
    // Being tidy must neither hold up whoever kept something nor fail for him.
    this.prune(name).catch(() => {})
  }

  /** For one of which nothing is left but its name. */
  async forget(name: string): Promise<void> {
    await removeTree(this.folderOf(name))
  }

  /** Removes one before its time, unless something stands on it. Nothing to remove is no error. */
  async remove(name: string): Promise<void> {
    if (!(await this.has(name))) return
    const needed = new Set([...(await this.#deps.inUse()), ...(await this.#list()).flatMap(({ below }) => below)])
    if (!needed.has(name)) await this.#remove(name)
  }

  /** Removes what is too old or too much, and says what. `newest` has not been started from yet and stays. */
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

  /** Out of the way first: whoever starts from it from now on finds none. Who was quicker is on record by then. */
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

  /** The least recently used first. */
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

  /** What a process that died was making or removing. */
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

/** What it takes on disk. */
async function sizeOf(folder: string): Promise<number> {
  const { stdout } = await runProgram(['du', '-sk', '--', folder], { env: { PATH: '/usr/bin:/bin' } })
  const kilobytes = Number.parseInt(stdout, 10)
  return Number.isSafeInteger(kilobytes) ? kilobytes * 1024 : 0
}
