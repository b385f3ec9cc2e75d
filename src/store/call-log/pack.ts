import { constants, type FileHandle, open, rename, unlink } from 'node:fs/promises'
import { promisify } from 'node:util'
import { constants as zlibConstants, zstdCompress } from 'node:zlib'
import type { Limit } from '../../lib/async/limit.ts'
import { type BufferPool, ByteWriter } from './byte-writer.ts'
import { FRAME_BYTES, RecordKind, readRecord, writeRecord } from './record.ts'
import { scanFrames } from './scan.ts'

/** Frames are compressed in runs of about this size: large enough to compress well, small enough for memory and damage. */
const RUN_BYTES = 256 * 1024
const LEVEL = { params: { [zlibConstants.ZSTD_c_compressionLevel]: 1 } }

const zstdCompressAsync = promisify(zstdCompress)

/**
 * Rewrites a closed log with compressed records, in the thread pool. The new file replaces the old one atomically after it was
 * synced, so a reader or a crash sees one of them. The opening record stays uncompressed: lists of sessions read only that one.
 * If this throws, the log is unchanged.
 */
export async function packLog(
  path: string,
  { pool, syncLimit }: { pool: BufferPool; syncLimit: Limit },
): Promise<void> {
  const temporary = `${path}.packing`
  const source = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW)
  try {
    const target = await open(temporary, 'w', 0o600)
    try {
      await copyPacked(source, target, pool)
      await syncLimit(() => target.datasync())
    } finally {
      await target.close()
    }
    await rename(temporary, path)
  } catch (error) {
    await unlink(temporary).catch(() => undefined)
    throw error
  } finally {
    await source.close()
  }
}

async function copyPacked(source: FileHandle, target: FileHandle, pool: BufferPool): Promise<void> {
  const run = new ByteWriter(pool)
  const packed = new ByteWriter(pool)
  let first = 0
  let records = 0

  async function writeRun(): Promise<void> {
    if (records === 0) return
    const header = { records, bytes: run.length }
    const column = await zstdCompressAsync(run.bytes, LEVEL)
    writeRecord(packed, { kind: RecordKind.pack, header }, first, [column])
    await writeAll(target, packed.bytes)
    packed.release()
    run.release()
    records = 0
  }

  try {
    for await (const event of scanFrames(source)) {
      if (event.type !== 'frame') throw new Error(`The log is damaged at byte ${event.offset}`)
      const { kind, sequence } = readRecord(event.frame.subarray(FRAME_BYTES))
      if (kind === RecordKind.pack || event.offset === 0) {
        await writeRun()
        await writeAll(target, event.frame)
        continue
      }
      if (records === 0) first = sequence
      run.putBytes(event.frame)
      records += 1
      if (run.length >= RUN_BYTES) await writeRun()
    }
    await writeRun()
  } finally {
    run.release()
    packed.release()
  }
}

async function writeAll(handle: FileHandle, bytes: Buffer): Promise<void> {
  let done = 0
  while (done < bytes.length) done += (await handle.write(bytes, done)).bytesWritten
}
