import { Duplex } from 'node:stream'
import type { ReadableWritablePair } from 'node:stream/web'
import { createZstdDecompress } from 'node:zlib'

/** A JSON value that is too long for memory, as chunks of bytes. Together they must be valid JSON. */
export class JsonStream {
  readonly #chunks: AsyncIterable<Uint8Array>

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks
  }

  /** Can be read only once. */
  get chunks(): AsyncIterable<Uint8Array> {
    return this.#chunks
  }
}

/** A JSON value in a zstd-compressed file; clients that accept zstd get it without recompression. */
export class StoredJson extends JsonStream {
  readonly compressed: ReadableStream<Uint8Array>
  /** Compressed size. */
  readonly bytes: number

  constructor(compressed: ReadableStream<Uint8Array>, bytes: number) {
    super(compressed)
    this.compressed = compressed
    this.bytes = bytes
  }

  override get chunks(): AsyncIterable<Uint8Array> {
    const decoder = createZstdDecompress()
    // A client that disconnects destroys the decoder; the source stream reports it.
    decoder.on('error', () => {})
    const pair = Duplex.toWeb(decoder) as unknown as ReadableWritablePair<Uint8Array, Uint8Array>
    return this.compressed.pipeThrough(pair)
  }
}

/** Parses the value, and returns a copy of the stream. For tests: keeps all of it in memory. */
export async function readJson(json: JsonStream): Promise<{ value: unknown; again: JsonStream }> {
  if (json instanceof StoredJson) {
    const held = await gather(json.compressed)
    const again = (): StoredJson => new StoredJson(new Blob([held]).stream(), json.bytes)
    return { value: JSON.parse((await gather(again().chunks)).toString()), again: again() }
  }
  const held = await gather(json.chunks)
  return { value: JSON.parse(held.toString()), again: new JsonStream(new Blob([held]).stream()) }
}

async function gather(chunks: AsyncIterable<Uint8Array>): Promise<Buffer<ArrayBuffer>> {
  const parts: Uint8Array[] = []
  for await (const chunk of chunks) parts.push(chunk)
  return Buffer.concat(parts)
}
