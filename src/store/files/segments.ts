import type { Hash } from 'node:crypto'
import { randomBytes } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { unless } from './disk.ts'

/**
 * A run of an upload's bytes in one file that only its own process ever writes, and only at its end. Several servers may
 * thus receive the same upload at once, and nothing that was counted or checked is ever written over. Beside it lies a
 * file of counts, one a line: how long it is for certain. What goes beyond that may be half a part.
 */
export interface Segment {
  name: string
  start: number
  /** End of what is safely on disk. */
  end: number
}

/** A segment of this process. */
export interface Lane extends Segment {
  /** Over all bytes from the first to `end`; absent when others received some of them. */
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
  /** Of the bytes from the first, without a gap. */
  offset: number
  segments: Segment[]
  names: string[]
}

/** What is there of an upload. Undefined: there is no such upload. */
export async function readReceived(folder: string, own: Lane | undefined): Promise<Received | undefined> {
  const names = await readdir(folder).catch(unless('ENOENT'))
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

/** The fewest segments that give the bytes from the first on, each beginning before the one before it ends. */
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

/** The last whole line. One that a crash cut has no end, or is no number. */
async function readCount(path: string): Promise<number> {
  const text = (await readFile(path, 'latin1').catch(unless('ENOENT'))) ?? ''
  const lines = text.split('\n').slice(0, -1)
  const last = lines.findLast((line) => /^\d{1,16}$/.test(line))
  return last === undefined ? 0 : Number(last)
}
