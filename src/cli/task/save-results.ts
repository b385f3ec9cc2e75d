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
 * Saves all results of a task as JSON lines. The file gets its name when it is complete; results that an earlier, interrupted
 * call saved are not requested again.
 */
export async function saveResults(
  client: Client,
  taskId: string,
  options: { dir: string; follow: boolean; signal: AbortSignal; onResult?: (count: number) => void },
): Promise<SavedResults> {
  const { dir, follow, signal, onResult } = options
  const file = join(dir, `${encodeURIComponent(taskId)}.jsonl`)
  const part = `${file}.part`
  const { lines, bytes } = await countComplete(part)
  let count = lines
  const stream = client.streamTaskResults({ params: { task_id: taskId }, query: { skip: lines, follow }, signal })
  // For an unknown task this throws before a file is created.
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

/** Counts the complete lines and their bytes. */
async function countComplete(path: string): Promise<{ lines: number; bytes: number }> {
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
