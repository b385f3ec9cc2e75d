import { open, type FileHandle } from 'node:fs/promises'
import { RolloutError } from '../../../../model/failure.ts'

const PIECE_BYTES = 64 * 1024
/** The file of an idle reader is closed after this time and opened again when needed. */
const IDLE_MS = 1000

/**
 * Stores the output of a command on disk: one writer, any number of readers with offsets of their own. Stores the first
 * `maxBytes` and counts the rest.
 */
export class Spool {
  readonly #path: string
  readonly #maxBytes: number
  readonly #file: FileHandle
  #kept = 0
  #seen = 0
  #isEnded = false
  #wake: (() => void)[] = []

  static async create(path: string, maxBytes: number): Promise<Spool> {
    return new Spool(path, maxBytes, await open(path, 'wx', 0o600))
  }

  private constructor(path: string, maxBytes: number, file: FileHandle) {
    this.#path = path
    this.#maxBytes = maxBytes
    this.#file = file
  }

  /** Bytes written, stored or not. */
  get bytes(): number {
    return this.#seen
  }

  async write(chunk: Uint8Array): Promise<void> {
    this.#seen += chunk.length
    let rest = chunk.subarray(0, this.#maxBytes - this.#kept)
    while (rest.length > 0) {
      const { bytesWritten } = await this.#file.write(rest, 0, rest.length, this.#kept)
      this.#kept += bytesWritten
      rest = rest.subarray(bytesWritten)
      this.#notify()
    }
  }

  /** Called when no more output follows. */
  async end(): Promise<void> {
    if (this.#isEnded) return
    this.#isEnded = true
    this.#notify()
    await this.#file.close()
  }

  async *read(from: number): AsyncGenerator<Buffer, void, undefined> {
    let offset = from
    await using reader = new Reader(this.#path)
    for (;;) {
      while (offset < this.#kept) {
        const piece = await reader.read(offset, Math.min(PIECE_BYTES, this.#kept - offset))
        if (piece.length === 0) return
        offset += piece.length
        yield piece
      }
      if (this.#isEnded) return
      await new Promise<void>((resolve) => this.#wake.push(resolve))
    }
  }

  #notify(): void {
    const wake = this.#wake
    this.#wake = []
    for (const resolve of wake) resolve()
  }
}

/** Closes its file when it is idle. */
class Reader implements AsyncDisposable {
  readonly #path: string
  #file: FileHandle | undefined
  #idle: NodeJS.Timeout | undefined

  constructor(path: string) {
    this.#path = path
  }

  async read(offset: number, size: number): Promise<Buffer> {
    clearTimeout(this.#idle)
    this.#file ??= await open(this.#path, 'r').catch((cause: unknown) => {
      throw new RolloutError(
        'runtime.gone',
        'The output was removed with its sandbox; read it before the sandbox stops',
        { cause },
      )
    })
    const { bytesRead, buffer } = await this.#file.read(Buffer.allocUnsafe(size), 0, size, offset)
    this.#idle = setTimeout(() => void this[Symbol.asyncDispose](), IDLE_MS).unref()
    return buffer.subarray(0, bytesRead)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#idle)
    const file = this.#file
    this.#file = undefined
    await file?.close()
  }
}
