import type { FileHandle } from 'node:fs/promises'
import { promisify } from 'node:util'
import { crc32, zstdDecompress } from 'node:zlib'
import {
  FRAME_BYTES,
  MAGIC,
  MAX_PAYLOAD_BYTES,
  type PackHeader,
  RecordKind,
  type StoredColumn,
  type StoredRecord,
  readRecord,
  toBytes,
} from './record.ts'

const WINDOW_BYTES = 256 * 1024

/**
 * One step through a file. `torn`: no complete frame follows, so a writer was interrupted here. `damage`: a complete frame
 * follows, or the checksum is valid and the content is not; bytes were changed after they were written.
 */
export type FrameEvent =
  | { type: 'frame'; offset: number; frame: Buffer }
  | { type: 'damage'; offset: number; bytes: number }
  | { type: 'torn'; offset: number; bytes: number }

export type RecordEvent =
  | { type: 'record'; offset: number; record: StoredRecord }
  | { type: 'damage'; offset: number; bytes: number }
  | { type: 'torn'; offset: number; bytes: number }

/** Reads records in the order of the file, including those in packs. A record is valid until the next one is read. */
export async function* scanRecords(handle: FileHandle): AsyncGenerator<RecordEvent> {
  for await (const event of scanFrames(handle)) {
    if (event.type !== 'frame') {
      yield event
      continue
    }
    const { offset, frame } = event
    const record = tryRead(frame)
    if (record === undefined) yield { type: 'damage', offset, bytes: frame.length }
    else if (record.kind === RecordKind.pack) yield* scanPack(record.header, record.columns, offset, frame.length)
    else yield { type: 'record', offset, record }
  }
}

/** Reads complete frames in the order of the file. A frame is valid until the next one is read. */
export async function* scanFrames(handle: FileHandle): AsyncGenerator<FrameEvent> {
  const { size } = await handle.stat()
  const window = new FileWindow(handle, size)
  let offset = 0
  while (offset < size) {
    const frame = await readFrame(window, offset)
    if (frame !== undefined) {
      yield { type: 'frame', offset, frame }
      offset += frame.length
      continue
    }
    const next = await findFrame(window, offset + 1)
    if (next === undefined) {
      yield { type: 'torn', offset, bytes: size - offset }
      return
    }
    yield { type: 'damage', offset, bytes: next - offset }
    offset = next
  }
}

async function* scanPack(
  header: PackHeader,
  columns: readonly StoredColumn[],
  offset: number,
  packBytes: number,
): AsyncGenerator<RecordEvent> {
  const frames = await unpack(header, columns).catch(() => undefined)
  let at = 0
  let found = 0
  while (frames !== undefined && at < frames.length) {
    const length = frameLength(frames.subarray(at))
    const frame = frames.subarray(at, at + (length ?? 0))
    const record = length === undefined || !isWhole(frame) ? undefined : tryRead(frame)
    if (record === undefined) break
    yield { type: 'record', offset, record }
    at += frame.length
    found += 1
  }
  if (found !== header.records) yield { type: 'damage', offset, bytes: packBytes }
}

const zstdDecompressAsync = promisify(zstdDecompress)

async function unpack({ bytes }: PackHeader, columns: readonly StoredColumn[]): Promise<Buffer> {
  const maxOutputLength = Math.min(bytes, MAX_PAYLOAD_BYTES + FRAME_BYTES)
  return zstdDecompressAsync(toBytes(columns[0]), { maxOutputLength })
}

function tryRead(frame: Buffer): StoredRecord | undefined {
  try {
    return readRecord(frame.subarray(FRAME_BYTES))
  } catch {
    return undefined
  }
}

async function readFrame(window: FileWindow, offset: number): Promise<Buffer | undefined> {
  const length = frameLength(await window.view(offset, FRAME_BYTES))
  if (length === undefined || length > window.size - offset) return undefined
  const frame = await window.view(offset, length)
  return frame.length === length && isWhole(frame) ? frame : undefined
}

/** Offset of the next complete frame, at `from` or later. */
async function findFrame(window: FileWindow, from: number): Promise<number | undefined> {
  let offset = from
  while (offset < window.size) {
    const bytes = await window.view(offset, Math.min(WINDOW_BYTES, window.size - offset))
    const found = bytes.indexOf(MAGIC)
    if (found === -1) {
      if (offset + bytes.length >= window.size || bytes.length < MAGIC.length) return undefined
      offset += bytes.length - (MAGIC.length - 1)
    } else {
      offset += found
      if ((await readFrame(window, offset)) !== undefined) return offset
      offset += 1
    }
  }
  return undefined
}

/** Length of the frame including its head; undefined if the bytes are not a head. */
function frameLength(bytes: Buffer): number | undefined {
  if (bytes.length < FRAME_BYTES || bytes.readUInt32LE(0) !== MAGIC.readUInt32LE()) return undefined
  const length = bytes.readUInt32LE(4)
  return length > MAX_PAYLOAD_BYTES ? undefined : FRAME_BYTES + length
}

function isWhole(frame: Buffer): boolean {
  return frame.length >= FRAME_BYTES && crc32(frame.subarray(FRAME_BYTES)) === frame.readUInt32LE(8)
}

/** A part of the file in memory, as large as the largest frame so far. */
class FileWindow {
  readonly size: number
  readonly #handle: FileHandle
  #buffer = Buffer.alloc(0)
  #start = 0
  #length = 0

  constructor(handle: FileHandle, size: number) {
    this.#handle = handle
    this.size = size
  }

  /** Bytes from `offset`; fewer than `length` only at the end of the file. Valid until the next call. */
  async view(offset: number, length: number): Promise<Buffer> {
    if (offset < this.#start || offset + length > this.#start + this.#length) await this.#load(offset, length)
    const at = offset - this.#start
    return this.#buffer.subarray(at, Math.min(at + length, this.#length))
  }

  async #load(offset: number, length: number): Promise<void> {
    const loaded = Math.min(Math.max(length, WINDOW_BYTES), this.size - offset)
    if (loaded > this.#buffer.length) this.#buffer = Buffer.allocUnsafeSlow(loaded)
    this.#start = offset
    this.#length = 0
    while (this.#length < loaded) {
      const position = offset + this.#length
      const { bytesRead } = await this.#handle.read(this.#buffer, this.#length, loaded - this.#length, position)
      // The file was truncated since `stat`; the missing bytes count as a torn tail.
      if (bytesRead === 0) return
      this.#length += bytesRead
    }
  }
}
