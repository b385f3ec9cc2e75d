import { open, readFile, rm, type FileHandle } from 'node:fs/promises'
import * as z from 'zod'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

const VERSION = 1

const Header = z.object({ version: z.int(), fingerprint: z.string() })

/** A session whose bytes are synced to disk. */
const Entry = z.object({
  session: z.string(),
  samples: z.int().nonnegative(),
  /** Size of the whole export up to and including this session. */
  bytes: z.int().nonnegative(),
  /** Number of the file that contains it, for exports to several files. */
  part: z.int().nonnegative().optional(),
})
export type ExportEntry = z.infer<typeof Entry>

/** Append-only file beside an unfinished export. Lists the sessions that the export contains completely. */
export class Journal {
  readonly #path: string
  readonly #handle: FileHandle

  private constructor(path: string, handle: FileHandle) {
    this.#path = path
    this.#handle = handle
  }

  static async start(path: string, fingerprint: string, entries: readonly ExportEntry[] = []): Promise<Journal> {
    const journal = new Journal(path, await open(path, 'w'))
    await journal.#write([{ version: VERSION, fingerprint }, ...entries])
    return journal
  }

  /** Must be called after the bytes of these sessions are synced to disk. */
  async append(entries: readonly ExportEntry[]): Promise<void> {
    if (entries.length > 0) await this.#write(entries)
  }

  async close(): Promise<void> {
    await this.#handle.close()
  }

  /** Must be called when the export is complete. */
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
 * Reads the sessions that an interrupted export completed; undefined if there is no journal. Ignores an incomplete last line.
 * Throws `config.invalid` if that export had other options.
 */
export async function readJournal(path: string, fingerprint: string): Promise<ExportEntry[] | undefined> {
  const text = await readFile(path, 'utf8').catch(ignoreErrno('ENOENT'))
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
