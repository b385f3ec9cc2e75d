import { type FileHandle, open, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { OpenFile } from './types.ts'
import { READ } from './disk.ts'
import { assertKeptPath } from './layout.ts'

const CHUNK_BYTES = 256 * 1024

/** Opens a stored file or a range of it. The stream reads on demand, and closes the file at its end or when cancelled. */
export async function openKept(
  dir: string,
  path: string,
  { offset, length }: { offset: number; length?: number } = { offset: 0 },
): Promise<OpenFile> {
  assertKeptPath(path)
  const file = await openPlain(dir, path)
  try {
    const { size } = await file.stat()
    if (!Number.isSafeInteger(offset) || offset < 0 || offset > size) throw outside(offset, size)
    const bytes = Math.min(length ?? size, size - offset)
    return { bytes, totalBytes: size, stream: streamOf(file, offset, offset + bytes, path) }
  } catch (error) {
    await file.close()
    throw error
  }
}

/** No part of the path may be a symbolic link. */
async function openPlain(dir: string, path: string): Promise<FileHandle> {
  try {
    const real = await realpath(join(dir, path))
    if (real !== join(await realpath(dir), path)) throw notFound(path)
    const file = await open(real, READ)
    if ((await file.stat()).isFile()) return file
    await file.close()
    throw notFound(path)
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'ELOOP', 'ENAMETOOLONG'].includes(errnoOf(error) ?? '')) throw notFound(path)
    throw error
  }
}

function streamOf(file: FileHandle, from: number, to: number, path: string): ReadableStream<Uint8Array> {
  let at = from
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const length = Math.min(CHUNK_BYTES, to - at)
          const { bytesRead, buffer } =
            length === 0
              ? { bytesRead: 0, buffer: Buffer.alloc(0) }
              : await file.read(Buffer.allocUnsafe(length), 0, length, at)
          if (length > 0 && bytesRead === 0)
            throw new RolloutError('store.corrupt', `${path} was truncated while it was read.`)
          at += bytesRead
          if (bytesRead > 0) controller.enqueue(buffer.subarray(0, bytesRead))
          if (at < to) return
          controller.close()
          await file.close()
        } catch (error) {
          await file.close().catch(() => {})
          throw error
        }
      },
      cancel: () => file.close(),
    },
    { highWaterMark: 0 },
  )
}

function notFound(path: string): RolloutError {
  return new RolloutError('request.not-found', `File ${path} does not exist.`)
}

function outside(offset: number, size: number): RolloutError {
  const message = `The offset ${offset} is outside the file of ${size} bytes.`
  return new RolloutError('request.malformed', message, { status: 416, param: 'query.offset' })
}
