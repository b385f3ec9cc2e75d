import type { Hash } from 'node:crypto'
import { randomBytes } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'

/**
 * Consecutive bytes of an upload in a file that only one process appends to. So several servers can receive the same upload at
 * the same time, and counted bytes are never overwritten. A second file holds counts, one per line: the length that is certain.
 * Bytes beyond it may be half a part.
 */
export interface Segment {
  name: string
  start: number
  /** End of the bytes that are synced to disk. */
  end: number
}

/** A segment that this process writes. */
export interface OwnSegment extends Segment {
  /** Hash of all bytes of the upload up to `end`; undefined if another process received some of them. */
  hash: Hash | undefined
}

export const WHOLE = 'whole'

const NAME = /^(\d{1,16})\.[0-9a-f]{24}\.part$/

export function newSegmentName(start: number): string {
  return `${start}.${randomBytes(12).toString('hex')}.part`
}

export function countsOf(name: string): string {
  return name.replace(/part$/, 'counts')
}

export interface Received {
  isComplete: boolean
  /** Length of the gapless prefix. */
  offset: number
  segments: Segment[]
  names: string[]
}

/** Reads the state of an upload. Undefined if the upload does not exist. */
export async function readReceived(folder: string, own: OwnSegment | undefined): Promise<Received | undefined> {
  const names = await readdir(folder).catch(ignoreErrno('ENOENT'))
  if (names === undefined) return undefined
  if (names.includes(WHOLE)) return { isComplete: true, offset: 0, segments: [], names }
  const found = names.flatMap((name) => {
    const start = NAME.exec(name)?.[1]
    return start === undefined ? [] : [{ name, start: Number(start) }]
  })
  const segments = await Promise.all(
    found.map(async ({ name, start }) => {
      const end = name === own?.name ? own.end : start + (await readCount(join(folder, countsOf(name))))
      return { name, start, end }
    }),
  )
  const chain = chainOf(segments)
  return { isComplete: false, offset: chain.at(-1)?.end ?? 0, segments, names }
}

/** The fewest segments that cover the gapless prefix; neighbours may overlap. */
export function chainOf(segments: readonly Segment[]): Segment[] {
  const chain: Segment[] = []
  for (let end = 0; ;) {
    const next = segments
      .filter((segment) => segment.start <= end && segment.end > end)
      .sort((a, b) => b.end - a.end)
      .at(0)
    if (next === undefined) return chain
    chain.push(next)
    end = next.end
  }
}

/** Reads the last complete line; a line truncated by a crash has no line break or is not a number. */
async function readCount(path: string): Promise<number> {
  const text = (await readFile(path, 'latin1').catch(ignoreErrno('ENOENT'))) ?? ''
  const lines = text.split('\n').slice(0, -1)
  const last = lines.findLast((line) => /^\d{1,16}$/.test(line))
  return last === undefined ? 0 : Number(last)
}
