import { randomUUID } from 'node:crypto'
import { appendFile, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import * as z from 'zod'
import { parseJson } from '../../lib/json/json-text.ts'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import { EvalResult } from '../../model/reward.ts'
import { SessionOrder } from '../../model/session-order.ts'
import { AgentEnding, SessionOutcome } from '../../model/session-outcome.ts'
import { SessionStatus } from '../../model/session.ts'

const ORDER = 'order.json'

/** A line of the journal: what happened to a session, in the order in which it did. */
const JournalEntry = z.object({
  /** Unix milliseconds. */
  at: z.number(),
  attempt: z.int(),
  from: SessionStatus,
  to: SessionStatus,
})
export type JournalEntry = z.infer<typeof JournalEntry>

const StoredGrade = z.object({ attempt: z.int(), ending: AgentEnding, grade: EvalResult })
export type StoredGrade = z.infer<typeof StoredGrade>

/** Of all that a node keeps: one folder a session. */
export function sessionsFolder(dir: string): string {
  return join(dir, 'sessions')
}

/** What is left of attempts that are nobody's business any more: `attempt-N/SESSION`. */
export function pastFolder(dir: string): string {
  return join(dir, 'past')
}

/** What a node keeps of a session, beside its call log: the order, how far it got, and how it ended. */
export class SessionFolder {
  readonly path: string

  private constructor(path: string) {
    this.path = path
  }

  /** The id must be one of ours: it becomes part of a path. */
  static of(dir: string, sessionId: string): SessionFolder {
    if (!isId(sessionId)) throw new RolloutError('config.invalid', `"${sessionId}" cannot be a session id.`)
    return new SessionFolder(join(dir, sessionId))
  }

  /** Of all sessions that have ended. */
  static async outcomes(dir: string): Promise<SessionOutcome[]> {
    const folders = await SessionFolder.all(dir)
    const found = await Promise.all(
      folders.map(async (folder) => {
        return (await folder.hasEnded()) ? folder.readOutcome() : undefined
      }),
    )
    return found.filter((outcome) => outcome !== undefined)
  }

  /** Sessions that were ordered and have not ended, as they are found when a node starts. */
  static async unfinished(dir: string): Promise<SessionFolder[]> {
    const folders = await SessionFolder.all(dir)
    const states = await Promise.all(folders.map((folder) => folder.#isUnfinished()))
    return folders.filter((_, index) => states[index])
  }

  /** Removes those of which not even the order was written: whoever gave it has not been told that it was taken. */
  static async removeUnbegun(dir: string): Promise<void> {
    for (const { path } of await SessionFolder.all(dir)) {
      const names = await readdir(path).catch(() => undefined)
      if (names?.every((name) => name.startsWith(`.${ORDER}.`))) await rm(path, { recursive: true, force: true })
    }
  }

  static async all(dir: string): Promise<SessionFolder[]> {
    const names = await readdir(dir).catch((error: unknown) => {
      if (errnoOf(error) === 'ENOENT') return []
      throw error
    })
    return names.filter(isId).map((id) => SessionFolder.of(dir, id))
  }

  /** Of its session. */
  get id(): string {
    return basename(this.path)
  }

  get artifacts(): string {
    return join(this.path, 'artifacts')
  }

  /** What a trainer gets of it, compressed; there before the outcome is, where it is wanted at all. */
  get result(): string {
    return join(this.path, 'result.json.zst')
  }

  /**
   * Out of the way, with all that is in it: what comes to this place from now on belongs to another attempt. With
   * `attempt`, only if it is that one's. Resolves with where it is now; undefined when nothing was moved.
   */
  async setAside(past: string, attempt?: number): Promise<string | undefined> {
    const found = await this.#attempt()
    if (attempt !== undefined && found !== attempt) return undefined
    const target = join(past, `attempt-${found}`, basename(this.path))
    await mkdir(dirname(target), { recursive: true, mode: 0o700 })
    await rm(target, { recursive: true, force: true })
    try {
      await rename(this.path, target)
      return target
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined
      throw error
    }
  }

  /** Of the order that lies there; 0 when that cannot be read. */
  async #attempt(): Promise<number> {
    const text = await readIfThere(join(this.path, ORDER))
    const parsed = SessionOrder.pick({ attempt: true })
      .strip()
      .safeParse(parseJson(text ?? ''))
    return parsed.success ? parsed.data.attempt : 0
  }

  async writeOrder(order: SessionOrder): Promise<void> {
    await mkdir(this.path, { recursive: true, mode: 0o700 })
    await this.#replace(ORDER, order)
  }

  /** Throws `store.corrupt` for what is not an order. */
  async readOrder(): Promise<SessionOrder> {
    return this.#read(ORDER, SessionOrder)
  }

  /** Survives the end of this process when it resolves; a power cut may lose the last lines, never tear an earlier one. */
  async note(entry: JournalEntry): Promise<void> {
    await appendFile(join(this.path, 'journal.jsonl'), `${JSON.stringify(entry)}\n`, { mode: 0o600 })
  }

  /** A line that was cut off, by a crash or a full disk, is left out, and so is what was added to it. */
  async readJournal(): Promise<JournalEntry[]> {
    const text = (await readIfThere(join(this.path, 'journal.jsonl'))) ?? ''
    return text.split('\n').slice(0, -1).flatMap(toEntry)
  }

  /** Kept as soon as there is one: whatever happens afterwards, a session is not graded twice. */
  async writeGrade(grade: StoredGrade): Promise<void> {
    await this.#replace('grade.json', grade)
  }

  /** Undefined when it was not graded. */
  async readGrade(): Promise<StoredGrade | undefined> {
    if ((await readIfThere(join(this.path, 'grade.json'))) === undefined) return undefined
    return this.#read('grade.json', StoredGrade)
  }

  /** Says that the session is over. Once and for all: it survives a power cut. */
  async writeOutcome(outcome: SessionOutcome): Promise<void> {
    await this.#replace('outcome.json', outcome)
  }

  async hasEnded(): Promise<boolean> {
    return (await readIfThere(join(this.path, 'outcome.json'))) !== undefined
  }

  async readOutcome(): Promise<SessionOutcome> {
    return this.#read('outcome.json', SessionOutcome)
  }

  async #isUnfinished(): Promise<boolean> {
    const [order, outcome] = await Promise.all(
      [ORDER, 'outcome.json'].map((name) => readIfThere(join(this.path, name))),
    )
    return order !== undefined && outcome === undefined
  }

  async #read<T>(name: string, schema: z.ZodType<T>): Promise<T> {
    const path = join(this.path, name)
    try {
      return schema.parse(JSON.parse(await readFile(path, 'utf8')))
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error)
      throw new RolloutError('store.corrupt', `${path} cannot be read: ${why}`, { cause: error })
    }
  }

  /** All or nothing, whatever happens meanwhile. */
  async #replace(name: string, value: unknown): Promise<void> {
    const draft = join(this.path, `.${name}.${randomUUID()}`)
    const file = await open(draft, 'wx', 0o600)
    try {
      await file.writeFile(`${JSON.stringify(value, undefined, 2)}\n`)
      await file.datasync()
    } finally {
      await file.close()
    }
    await rename(draft, join(this.path, name))
  }
}

function toEntry(line: string): JournalEntry[] {
  try {
    return [JournalEntry.parse(JSON.parse(line))]
  } catch {
    return []
  }
}

async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if (errnoOf(error) === 'ENOENT' || errnoOf(error) === 'ENOTDIR') return undefined
    throw error
  }
}
