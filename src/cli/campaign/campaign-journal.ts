import { constants, open, readFile, type FileHandle } from 'node:fs/promises'
import * as z from 'zod'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { parseJson } from '../../lib/json/json-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { SessionId } from '../../model/ids.ts'

const Header = z.object({
  entry: z.literal('campaign'),
  schemaVersion: z.literal(1),
  /** Run id of all sessions. */
  runId: SessionId,
  /** Hash of the tasks and of all settings that decide about acceptance. */
  fingerprint: z.string(),
})

/** A process of the campaign started. */
const Start = z.object({ entry: z.literal('start'), at: z.number() })

/** What became of one session. */
const Decision = z.object({
  entry: z.literal('decision'),
  /** Unix milliseconds. */
  at: z.number(),
  sessionId: SessionId,
  taskId: z.string(),
  /** `failed`: the agent did not cause the end, so the session does not count as an attempt. */
  verdict: z.enum(['accepted', 'rejected', 'failed']),
  /** A `RejectReason`, or the code of a failure. Absent if accepted. */
  reason: z.string().optional(),
  /** Digest of the trained tokens. */
  digest: z.string().optional(),
  reward: z.number().optional(),
  turns: z.int(),
  toolCalls: z.int().optional(),
  /** Secrets in the messages of its samples. */
  secrets: z.int().optional(),
  tokens: z.object({ sampled: z.int(), trained: z.int() }),
  /** Milliseconds that the agent worked; absent if unknown. */
  runMs: z.number().optional(),
})
export type Decision = z.infer<typeof Decision>

const Entry = z.discriminatedUnion('entry', [Start, Decision])

/**
 * Append-only file with every decision of a campaign. A decision counts once its line is complete on the disk. A crash can cut
 * off only the last line, and the next process decides about that session again, with the same result.
 */
export class CampaignJournal implements AsyncDisposable {
  readonly #handle: FileHandle
  #length = 0
  readonly runId: string
  /** Decisions of earlier processes, in order. */
  readonly decisions: readonly Decision[]
  /** Time that earlier processes worked, up to their last decisions. */
  readonly elapsedMs: number

  private constructor(handle: FileHandle, { runId, entries }: Contents) {
    this.#handle = handle
    this.runId = runId
    this.decisions = entries.filter((entry) => entry.entry === 'decision')
    this.elapsedMs = elapsedOf(entries)
  }

  /** Creates or continues a journal. Throws `config.invalid` if the campaign in the file has other tasks or rules. */
  static async open(
    path: string,
    { fingerprint, newId, now }: { fingerprint: string; newId: () => string; now: number },
  ): Promise<CampaignJournal> {
    const bytes = (await readFile(path).catch(ignoreErrno('ENOENT'))) ?? Buffer.alloc(0)
    const length = bytes.lastIndexOf('\n') + 1
    const found = length === 0 ? undefined : parse(path, bytes.toString('utf8', 0, length), fingerprint)
    const contents = found ?? { runId: newId(), entries: [] }
    const handle = await open(path, constants.O_CREAT | constants.O_RDWR, 0o600)
    const journal = new CampaignJournal(handle, contents)
    await handle.truncate(length)
    const { runId } = contents
    const header = found === undefined ? [{ entry: 'campaign', schemaVersion: 1, runId, fingerprint }] : []
    await journal.#write([...header, { entry: 'start', at: now }], length)
    return journal
  }

  /** Resolves when the decision is on the disk. Must not be called again before that. */
  async append(decision: Decision): Promise<void> {
    await this.#write([decision], this.#length)
  }

  async #write(entries: readonly object[], position: number): Promise<void> {
    const bytes = Buffer.from(entries.map((entry) => `${JSON.stringify(entry)}\n`).join(''))
    for (let done = 0; done < bytes.length;) {
      const { bytesWritten } = await this.#handle.write(bytes, done, bytes.length - done, position + done)
      done += bytesWritten
    }
    await this.#handle.datasync()
    this.#length = position + bytes.length
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.close()
  }
}

interface Contents {
  runId: string
  entries: readonly z.infer<typeof Entry>[]
}

function parse(path: string, text: string, fingerprint: string): Contents {
  const [first = '', ...rest] = text.split('\n').slice(0, -1)
  const header = Header.safeParse(parseJson(first))
  if (!header.success) throw new RolloutError('config.invalid', `${path} is not a journal of a campaign.`)
  if (header.data.fingerprint !== fingerprint) {
    throw new RolloutError(
      'config.invalid',
      `The campaign in ${path} has other tasks, accept rules, builder settings or formats. Use the same ones, or another --out.`,
    )
  }
  const entries = rest.map((line, index) => {
    const entry = Entry.safeParse(parseJson(line))
    if (entry.success) return entry.data
    throw new RolloutError('store.corrupt', `Line ${index + 2} of ${path} is damaged.`)
  })
  return { runId: header.data.runId, entries }
}

function elapsedOf(entries: Contents['entries']): number {
  let sum = 0
  let last: number | undefined
  for (const { entry, at } of entries) {
    if (entry === 'decision' && last !== undefined) sum += Math.max(0, at - last)
    last = at
  }
  return sum
}
