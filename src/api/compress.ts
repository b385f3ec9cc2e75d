import { Duplex } from 'node:stream'
import type { ReadableWritablePair } from 'node:stream/web'
import { constants, createGzip, createZstdCompress } from 'node:zlib'

type Coding = 'zstd' | 'gzip'

/** Compresses with the best coding that the client accepts. Flushes every chunk: a complete line must not wait for the next. */
export function compress(
  stream: ReadableStream<Uint8Array>,
  request: Request,
  headers: Readonly<Record<string, string>>,
): Response {
  const all = { ...headers, vary: 'accept-encoding' }
  const coding = chooseCoding(request.headers.get('accept-encoding') ?? '')
  if (coding === undefined) return new Response(stream, { headers: all })
  const encoder =
    coding === 'zstd'
      ? createZstdCompress({ flush: constants.ZSTD_e_flush })
      : createGzip({ flush: constants.Z_SYNC_FLUSH, level: constants.Z_BEST_SPEED })
  // A client that disconnects destroys the encoder; the source stream reports it.
  encoder.on('error', () => {})
  const pair = Duplex.toWeb(encoder) as unknown as ReadableWritablePair<Uint8Array, Uint8Array>
  return new Response(stream.pipeThrough(pair), { headers: { ...all, 'content-encoding': coding } })
}

export function chooseCoding(header: string): Coding | undefined {
  const accepted = new Set<string>()
  for (const part of header.toLowerCase().split(',')) {
    const [name = '', ...parameters] = part.split(';').map((text) => text.trim())
    if (!parameters.some((text) => /^q=0(?:\.0*)?$/.test(text))) accepted.add(name)
  }
  if (accepted.has('zstd')) return 'zstd'
  return accepted.has('gzip') ? 'gzip' : undefined
}
