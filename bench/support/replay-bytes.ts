import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

export const WHOLE_FILE = 'whole.json'
export const STREAM_FILE = 'stream.sse'

export interface ReplayBytes {
  whole: Buffer
  /** One event each: first those with tokens, then from the finish reason on. */
  tokens: Buffer[]
  tail: Buffer[]
}

export async function loadAnswers(dir: string): Promise<ReplayBytes> {
  const stream = await readFile(join(dir, STREAM_FILE), 'utf8')
  const events = stream.split(/(?<=\n\n)/)
  const tailAt = events.findIndex((event) => /"finish_reason": ?"/.test(event))
  return {
    whole: await readFile(join(dir, WHOLE_FILE)),
    tokens: events.slice(0, tailAt).map((event) => Buffer.from(event)),
    tail: events.slice(tailAt).map((event) => Buffer.from(event)),
  }
}
