import { open, readFile, rm, type FileHandle } from 'node:fs/promises'
import * as z from 'zod'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

const VERSION = 1

const Header = z.object({ version: z.int(), fingerprint: z.string() })

/** A session whose bytes are on the disk. */
const Entry = z.object({
  session: z.string(),
  samples: z.int().nonnegative(),
  /** Of the whole export, once this session is in. */
  bytes: z.int().nonnegative(),
  /** The file it is in, for exports of several. */
  part: z.int().nonnegative().optional(),
})
export type JournalEntry = z.infer<typeof Entry>

/** The file beside an unfinished export that says which sessions are whole in it. Lines are only ever appended. */
export class Journal {
  readonly #path: string
  readonly #handle: FileHandle

  private constructor(path: string, handle: FileHandle) {
    this.#path = path
    this.#handle = handle
  }

  static async start(path: string, fingerprint: string, entries: readonly JournalEntry[] = []): Promise<Journal> {
    const journal = new Journal(path, await open(path, 'w'))
    await journal.#write([{ version: VERSION, fingerprint }, ...entries])
    return journal
  }

  /** To be called when the bytes of these sessions are on the disk. */
  async append(entries: readonly JournalEntry[]): Promise<void> {
    if (entries.length > 0) await this.#write(entries)
  }

  async close(): Promise<void> {
    await this.#handle.close()
  }

  /** The export is whole. */
  async remove(): Promise<void> {
    await this.close()
    await rm(this.#path)
  }

  async #write(values: readonly object[]): Promise<void> {
    await this.#handle.appendFile(values.map((value) => `${JSON.stringify(value)}\n`).join(''))
    await this.#handle.datasync()
  }
}

/**
 * What an interrupted export had finished; undefined when there is no journal. A last line that is cut is one that was not
 * finished. Throws `config.invalid` when that export had other options.
 */
export async function readJournal(path: string, fingerprint: string): Promise<JournalEntry[] | undefined> {
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    if (errnoOf(error) === 'ENOENT') return undefined
    throw error
  })
  if (text === undefined) return undefined
  const [first, ...rest] = text.split('\n').slice(0, -1)
  if (first === undefined) return []
  const header = Header.safeParse(parseLine(path, first))
  if (!header.success || header.data.version !== VERSION) {
    throw new RolloutError('config.invalid', `${path} is not a progress file of this version. Export without --resume.`)
  }
  if (header.data.fingerprint !== fingerprint) {
    throw new RolloutError(
      'config.invalid',
      `The export that ${path} belongs to had other options or rewards. Use the same ones, or export without --resume.`,
    )
  }
  return rest.map((line) => Entry.parse(parseLine(path, line)))
}

function parseLine(path: string, line: string): unknown {
  try {
    return JSON.parse(line)
  } catch (error) {
    const message = `The progress file ${path} is damaged. Export without --resume.`
    throw new RolloutError('config.invalid', message, { cause: error })
  }
}
