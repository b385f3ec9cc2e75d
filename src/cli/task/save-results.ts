import { createReadStream } from 'node:fs'
import { mkdir, open, rename } from 'node:fs/promises'
import { join } from 'node:path'
import type { Client } from '../../client/client.ts'
import { errnoOf } from '../../lib/fs/errno.ts'

export interface SavedResults {
  file: string
  results: number
}

/**
 * All results of a task as lines of a file. It is there under its name once it is whole; what an earlier call brought is
 * not asked for again.
 */
export async function saveResults(
  client: Client,
  taskId: string,
  options: { dir: string; follow: boolean; signal: AbortSignal; onResult?: (count: number) => void },
): Promise<SavedResults> {
  const { dir, follow, signal, onResult } = options
  const file = join(dir, `${encodeURIComponent(taskId)}.jsonl`)
  const part = `${file}.part`
  const { lines, bytes } = await countWhole(part)
  let count = lines
  const stream = client.streamTaskResults({ params: { task_id: taskId }, query: { skip: lines, follow }, signal })
  // Nothing is left behind by a task that is not there.
  let next = await stream.next()
  await mkdir(dir, { recursive: true })
  await using handle = await open(part, 'a', 0o600)
  await handle.truncate(bytes)
  for (; next.done !== true; next = await stream.next()) {
    await handle.appendFile(`${JSON.stringify(next.value)}\n`)
    count += 1
    onResult?.(count)
  }
  await handle.sync()
  await rename(part, file)
  return { file, results: count }
}

/** Lines that came whole, and how long they are in all. */
async function countWhole(path: string): Promise<{ lines: number; bytes: number }> {
  let lines = 0
  let bytes = 0
  let read = 0
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, at + 1)) {
        lines += 1
        bytes = read + at + 1
      }
      read += chunk.length
    }
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error
  }
  return { lines, bytes }
}
