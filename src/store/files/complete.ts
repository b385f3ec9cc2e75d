import { createHash, type Hash } from 'node:crypto'
import type { FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { CREATE, READ, unlinkIfThere, withFile, writeAll } from './disk.ts'
import type { FileLock } from './file-mutex.ts'
import { newSegmentName, type Segment } from './segments.ts'

const CHUNK_BYTES = 2 ** 20

/** Digest of the first `bytes` bytes of a file. */
export async function hashFile(path: string, bytes: number, onProgress: () => void = () => {}): Promise<string> {
  const hash = createHash('sha256')
  await withFile(path, READ, (file) => readRange(file, 0, bytes, (chunk) => updateHash(hash, chunk, onProgress)))
  return digestOf(hash)
}

export function digestOf(hash: Hash): string {
  return `sha256:${hash.digest('hex')}`
}

/**
 * Joins the segments of a chain in a new, synced file. Its name is that of a segment without counts, so the bytes of a file
 * that a crash leaves behind do not count. If a segment is shorter than its count, the file is shorter and its digest differs.
 */
export async function joinSegments(
  folder: string,
  chain: readonly Segment[],
  lock: FileLock,
): Promise<{ name: string; digest: string }> {
  const name = newSegmentName(0)
  const hash = createHash('sha256')
  try {
    await withFile(join(folder, name), CREATE, async (target) => {
      let at = 0
      for (const segment of chain) {
        await withFile(join(folder, segment.name), READ, (source) =>
          readRange(source, Math.max(at - segment.start, 0), segment.end - segment.start, async (chunk) => {
            updateHash(hash, chunk, () => lock.progress())
            lock.signal.throwIfAborted()
            await writeAll(target, [chunk], at)
            at += chunk.length
          }),
        )
      }
      await target.datasync()
    })
  } catch (error) {
    await unlinkIfThere(join(folder, name))
    throw error
  }
  return { name, digest: digestOf(hash) }
}

function updateHash(hash: Hash, chunk: Uint8Array, onProgress: () => void): void {
  hash.update(chunk)
  onProgress()
}

/** The chunk is overwritten after `use`. Stops at the end of the file. */
async function readRange(
  file: FileHandle,
  from: number,
  to: number,
  use: (chunk: Uint8Array) => void | Promise<void>,
): Promise<void> {
  const buffer = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, Math.max(to - from, 0)))
  for (let at = from; at < to;) {
    const { bytesRead } = await file.read(buffer, 0, Math.min(buffer.length, to - at), at)
    if (bytesRead === 0) return
    await use(buffer.subarray(0, bytesRead))
    at += bytesRead
  }
}
