import { createHash, type Hash } from 'node:crypto'
import type { FileHandle } from 'node:fs/promises'
import { onAbort } from '../../lib/async/until-aborted.ts'
import { RolloutError } from '../../model/failure.ts'
import { onDisk, writeAll } from './disk.ts'
import type { FileLock } from './file-mutex.ts'

/** A write costs a switch to another thread, whatever its size; HTTP chunks have 64 KiB. */
const WRITE_BYTES = 2 ** 20

export interface PartTarget {
  file: FileHandle
  position: number
  /** A longer body is rejected. */
  maxBytes: number
  /** Updated with the bytes. */
  hash: Hash | undefined
  /** Digest of this part; undefined if the client sent none. */
  digest: string | undefined
}

/** Streams a body into a file with little buffering, without sync. Returns the number of bytes. */
export async function receivePart(
  body: ReadableStream<Uint8Array>,
  target: PartTarget,
  lock: FileLock,
): Promise<number> {
  const partHash = target.digest === undefined ? undefined : createHash('sha256')
  let received = 0
  let pending: Uint8Array[] = []
  let pendingBytes = 0
  // One write runs while the next bytes arrive.
  let writing: Promise<void> = Promise.resolve()
  const flush = async (): Promise<void> => {
    await writing
    const chunks = pending
    const position = target.position + received - pendingBytes
    pending = []
    pendingBytes = 0
    writing = onDisk('A part could not be written', () => writeAll(target.file, chunks, position))
    // The next await gets the error; until then it must not count as unhandled.
    writing.catch(() => {})
  }
  try {
    for await (const chunk of read(body, lock.signal)) {
      lock.progress()
      if (received + chunk.length > target.maxBytes) throw tooLong(target.maxBytes)
      target.hash?.update(chunk)
      partHash?.update(chunk)
      pending.push(chunk)
      pendingBytes += chunk.length
      received += chunk.length
      if (pendingBytes >= WRITE_BYTES) await flush()
    }
    await flush()
  } finally {
    // Nothing may be written to the file after this function returns.
    await writing.catch(() => {})
  }
  await writing
  if (partHash !== undefined && `sha256:${partHash.digest('hex')}` !== target.digest) throw differs()
  return received
}

/** Reads and discards the body. Returns the number of bytes. */
export async function skipBody(body: ReadableStream<Uint8Array>, lock: FileLock): Promise<number> {
  let skipped = 0
  for await (const chunk of read(body, lock.signal)) {
    lock.progress()
    skipped += chunk.length
  }
  return skipped
}

async function* read(body: ReadableStream<Uint8Array>, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  const reader = body.getReader()
  const stop = (): void => void reader.cancel(signal.reason).catch(() => {})
  using _ = onAbort(signal, stop)
  try {
    for (;;) {
      const next = await reader.read().catch((error: unknown) => {
        throw error instanceof RolloutError ? error : truncated(error)
      })
      signal.throwIfAborted()
      if (next.done) return
      yield next.value
    }
  } finally {
    stop()
  }
}

function truncated(cause: unknown): RolloutError {
  const message = 'The part was truncated, and nothing of it was stored; send it again.'
  return new RolloutError('request.malformed', message, { cause, param: 'body' })
}

function tooLong(maxBytes: number): RolloutError {
  const message = `The part is too long: the upload needs only ${maxBytes} more bytes.`
  return new RolloutError('request.malformed', message, { status: 422, param: 'body' })
}

function differs(): RolloutError {
  const message = 'The part does not match its digest: it was damaged in transit, or the file changed. Send it again.'
  return new RolloutError('request.malformed', message, { status: 422, param: 'query.digest' })
}
