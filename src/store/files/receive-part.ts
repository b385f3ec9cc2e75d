import { createHash, type Hash } from 'node:crypto'
import type { FileHandle } from 'node:fs/promises'
import { RolloutError } from '../../model/failure.ts'
import { onDisk, writeAll } from './disk.ts'
import type { Turn } from './file-mutex.ts'

/** A write costs a trip to another thread, whatever its size; what HTTP gives is 64 KiB at a time. */
const WRITE_BYTES = 2 ** 20

export interface PartPlace {
  file: FileHandle
  position: number
  /** More than that is not taken. */
  maxBytes: number
  /** Takes in the bytes, too. */
  hash: Hash | undefined
  /** Of this part alone, where the sender said it. */
  digest: string | undefined
}

/** Writes a body into a file as it comes, holding little of it; returns how much it was. Nothing is synced. */
export async function receivePart(body: ReadableStream<Uint8Array>, place: PartPlace, turn: Turn): Promise<number> {
  const partHash = place.digest === undefined ? undefined : createHash('sha256')
  let received = 0
  let pending: Uint8Array[] = []
  let pendingBytes = 0
  // One write is under way while the next bytes come in.
  let writing: Promise<void> = Promise.resolve()
  const flush = async (): Promise<void> => {
    await writing
    const chunks = pending
    const position = place.position + received - pendingBytes
    pending = []
    pendingBytes = 0
    writing = onDisk('A part could not be written', () => writeAll(place.file, chunks, position))
    // Whoever awaits it next sees the error; until then it must not count as unhandled.
    writing.catch(() => {})
  }
  try {
    for await (const chunk of read(body, turn.signal)) {
      turn.progress()
      if (received + chunk.length > place.maxBytes) throw tooLong(place.maxBytes)
      place.hash?.update(chunk)
      partHash?.update(chunk)
      pending.push(chunk)
      pendingBytes += chunk.length
      received += chunk.length
      if (pendingBytes >= WRITE_BYTES) await flush()
    }
    await flush()
  } finally {
    // The file is the caller's again: nothing may be written to it after this.
    await writing.catch(() => {})
  }
  await writing
  if (partHash !== undefined && `sha256:${partHash.digest('hex')}` !== place.digest) throw differs()
  return received
}

/** Reads to the end without keeping anything; how much it was. */
export async function skipBody(body: ReadableStream<Uint8Array>, turn: Turn): Promise<number> {
  let skipped = 0
  for await (const chunk of read(body, turn.signal)) {
    turn.progress()
    skipped += chunk.length
  }
  return skipped
}

async function* read(body: ReadableStream<Uint8Array>, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  const reader = body.getReader()
  const stop = (): void => void reader.cancel(signal.reason).catch(() => {})
  signal.addEventListener('abort', stop)
  try {
    for (;;) {
      const next = await reader.read().catch((error: unknown) => {
        throw error instanceof RolloutError ? error : cutOff(error)
      })
      signal.throwIfAborted()
      if (next.done) return
      yield next.value
    }
  } finally {
    signal.removeEventListener('abort', stop)
    stop()
  }
}

function cutOff(cause: unknown): RolloutError {
  const message = 'The part was cut off on its way, and nothing of it was kept; send it again.'
  return new RolloutError('request.malformed', message, { cause, param: 'body' })
}

function tooLong(maxBytes: number): RolloutError {
  const message = `The part goes on after the end of the upload, which lacks ${maxBytes} bytes.`
  return new RolloutError('request.malformed', message, { status: 422, param: 'body' })
}

function differs(): RolloutError {
  const message = 'The part differs from its digest: it was damaged on its way, or the file changed. Send it again.'
  return new RolloutError('request.malformed', message, { status: 422, param: 'query.digest' })
}
