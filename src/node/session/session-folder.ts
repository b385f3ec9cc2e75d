import { randomUUID } from 'node:crypto'
import { appendFile, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import * as z from 'zod'
import { parseJson } from '../../lib/json/json-text.ts'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import { EvalResult } from '../../model/reward.ts'
import { SessionOrder } from '../../model/session-order.ts'
import { AgentEnding, SessionOutcome } from '../../model/session-outcome.ts'
import { SessionStatus } from '../../model/session.ts'

const ORDER = 'order.json'

/** A line of the journal: one state transition. */
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

/** The folder of a node with one folder per session. */
export function sessionsFolder(dir: string): string {
  return join(dir, 'sessions')
}

/** The folder of a node with past attempts, as `attempt-N/SESSION`. */
export function pastFolder(dir: string): string {
  return join(dir, 'past')
}

/** The files of a session besides its call log: the session spec, the journal, the grade and the outcome. */
export class SessionFolder {
  readonly path: string

  private constructor(path: string) {
    this.path = path
  }

  /** Throws if the session id is invalid: it becomes part of a path. */
  static of(dir: string, sessionId: string): SessionFolder {
    if (!isId(sessionId)) throw new RolloutError('config.invalid', `"${sessionId}" is not a valid session id.`)
    return new SessionFolder(join(dir, sessionId))
  }

  /** The outcomes of all sessions that have ended. */
  static async outcomes(dir: string): Promise<SessionOutcome[]> {
    const folders = await SessionFolder.all(dir)
    const found = await Promise.all(
      folders.map(async (folder) => {
        return (await folder.hasEnded()) ? folder.readOutcome() : undefined
      }),
    )
    return found.filter((outcome) => outcome !== undefined)
  }

  /** The sessions with a session spec and without an outcome. */
  static async unfinished(dir: string): Promise<SessionFolder[]> {
    const folders = await SessionFolder.all(dir)
    const states = await Promise.all(folders.map((folder) => folder.#isUnfinished()))
    return folders.filter((_, index) => states[index])
  }

  /** Removes folders without a complete session spec: their sessions were never confirmed to the caller. */
  static async removeEmpty(dir: string): Promise<void> {
    for (const { path } of await SessionFolder.all(dir)) {
      const names = await readdir(path).catch(() => undefined)
      if (names?.every((name) => name.startsWith(`.${ORDER}.`))) await rm(path, { recursive: true, force: true })
    }
  }

  static async all(dir: string): Promise<SessionFolder[]> {
    const names = (await readdir(dir).catch(ignoreErrno('ENOENT'))) ?? []
    return names.filter(isId).map((id) => SessionFolder.of(dir, id))
  }

  /** The session id. */
  get id(): string {
    return basename(this.path)
  }

  get artifacts(): string {
    return join(this.path, 'artifacts')
  }

  /** The path of the result for the trainer; written before the outcome, if at all. */
  get result(): string {
    return join(this.path, 'result.json.zst')
  }

  /**
   * Moves the folder to the past sessions, so that another attempt can use its path. With `attempt`, only if the folder
   * belongs to that attempt. Resolves with the new path; undefined if nothing was moved.
   */
  async archive(past: string, attempt?: number): Promise<string | undefined> {
    const found = await this.#attempt()
    if (attempt !== undefined && found !== attempt) return undefined
    const target = join(past, `attempt-${found}`, basename(this.path))
    await mkdir(dirname(target), { recursive: true, mode: 0o700 })
    await rm(target, { recursive: true, force: true })
    const renamed = rename(this.path, target).then(() => target)
    return renamed.catch(ignoreErrno('ENOENT'))
  }

  /** The attempt of the stored session spec; 0 if it cannot be read. */
  async #attempt(): Promise<number> {
    const text = await readIfExists(join(this.path, ORDER))
    const parsed = SessionOrder.pick({ attempt: true })
      .strip()
      .safeParse(parseJson(text ?? ''))
    return parsed.success ? parsed.data.attempt : 0
  }

  async writeOrder(order: SessionOrder): Promise<void> {
    await mkdir(this.path, { recursive: true, mode: 0o700 })
    await this.#replace(ORDER, order)
  }

  /** Throws `store.corrupt` if the file is not a session spec. */
  async readOrder(): Promise<SessionOrder> {
    return this.#read(ORDER, SessionOrder)
  }

  /** Survives a crash of this process; a power cut may lose the last lines, but never damages earlier lines. */
  async appendJournal(entry: JournalEntry): Promise<void> {
    await appendFile(join(this.path, 'journal.jsonl'), `${JSON.stringify(entry)}\n`, { mode: 0o600 })
  }

  /** Skips a line that a crash or a full disk cut off, together with the text that was appended to it. */
  async readJournal(): Promise<JournalEntry[]> {
    const text = (await readIfExists(join(this.path, 'journal.jsonl'))) ?? ''
    return text.split('\n').slice(0, -1).flatMap(toEntry)
  }

  /** Written as soon as the grade is known: a session must not be graded twice, also after a crash. */
  async writeGrade(grade: StoredGrade): Promise<void> {
    await this.#replace('grade.json', grade)
  }

  /** Undefined if the session was not graded. */
  async readGrade(): Promise<StoredGrade | undefined> {
    if ((await readIfExists(join(this.path, 'grade.json'))) === undefined) return undefined
    return this.#read('grade.json', StoredGrade)
  }

  /** Marks the session as ended. Durable: survives a power cut. */
  async writeOutcome(outcome: SessionOutcome): Promise<void> {
    await this.#replace('outcome.json', outcome)
  }

  async hasEnded(): Promise<boolean> {
    return (await readIfExists(join(this.path, 'outcome.json'))) !== undefined
  }

  async readOutcome(): Promise<SessionOutcome> {
    return this.#read('outcome.json', SessionOutcome)
  }

  async #isUnfinished(): Promise<boolean> {
    const [order, outcome] = await Promise.all(
      [ORDER, 'outcome.json'].map((name) => readIfExists(join(this.path, name))),
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

  /** Replaces a file atomically and durably. */
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
  const parsed = JournalEntry.safeParse(parseJson(line))
  return parsed.success ? [parsed.data] : []
}

function readIfExists(path: string): Promise<string | undefined> {
  return readFile(path, 'utf8').catch(ignoreErrno('ENOENT', 'ENOTDIR'))
}
