import { open, type FileHandle } from 'node:fs/promises'
import { dirname } from 'node:path'

/** Write buffer size: one write of this size costs about as much as one of a single line. */
const WRITE_BYTES = 2 ** 18

/** Buffered, append-only writer. `write` waits for the disk, so memory use is bounded. */
export class OutputFile {
  readonly #handle: FileHandle
  #pending: Buffer[] = []
  #pendingBytes = 0
  #written: number

  private constructor(handle: FileHandle, written: number) {
    this.#handle = handle
    this.#written = written
  }

  static async create(path: string): Promise<OutputFile> {
    return new OutputFile(await open(path, 'w'), 0)
  }

  /** Truncates the file to `length` bytes and appends to it. Throws if the file is shorter. */
  static async resume(path: string, length: number): Promise<OutputFile> {
    const handle = await open(path, 'r+')
    const { size } = await handle.stat()
    if (size < length) {
      await handle.close()
      throw new RangeError(`${path} has ${size} bytes, but ${length} were written`)
    }
    await handle.truncate(length)
    return new OutputFile(handle, length)
  }

  get length(): number {
    return this.#written + this.#pendingBytes
  }

  async write(pieces: Iterable<string | Uint8Array>): Promise<void> {
    for (const piece of pieces) {
      const bytes =
        typeof piece === 'string' ? Buffer.from(piece) : Buffer.from(piece.buffer, piece.byteOffset, piece.length)
      this.#pending.push(bytes)
      this.#pendingBytes += bytes.length
      if (this.#pendingBytes >= WRITE_BYTES) await this.#flush()
    }
  }

  /** Resolves when all written bytes are synced to disk. */
  async sync(): Promise<void> {
    await this.#flush()
    await this.#handle.datasync()
  }

  async close(): Promise<void> {
    await this.#handle.close()
  }

  async #flush(): Promise<void> {
    const pending = this.#pending
    this.#pending = []
    this.#pendingBytes = 0
    for (const bytes of pending.length < 8 ? pending : [Buffer.concat(pending)]) {
      await writeAll(this.#handle, bytes, this.#written)
      this.#written += bytes.length
    }
  }
}

async function writeAll(handle: FileHandle, bytes: Buffer, position: number): Promise<void> {
  for (let done = 0; done < bytes.length;) {
    const { bytesWritten } = await handle.write(bytes, done, bytes.length - done, position + done)
    done += bytesWritten
  }
}

/** Makes a rename durable: it requires a sync of the folder. */
export async function syncFolderOf(path: string): Promise<void> {
  const handle = await open(dirname(path), 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
