import { Duplex } from 'node:stream'
import type { ReadableWritablePair } from 'node:stream/web'
import { constants, createGzip, createZstdCompress } from 'node:zlib'

type Coding = 'zstd' | 'gzip'

/** With the best coding that the reader takes. Every chunk is flushed: a line that is ready must not wait for the next. */
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
  // A reader that goes away destroys the encoder, which is heard of by the source.
  encoder.on('error', () => {})
  const pair = Duplex.toWeb(encoder) as unknown as ReadableWritablePair<Uint8Array, Uint8Array>
  return new Response(stream.pipeThrough(pair), { headers: { ...all, 'content-encoding': coding } })
}

export function chooseCoding(accepted: string): Coding | undefined {
  const taken = new Set<string>()
  for (const part of accepted.toLowerCase().split(',')) {
    const [name = '', ...parameters] = part.split(';').map((text) => text.trim())
    if (!parameters.some((text) => /^q=0(?:\.0*)?$/.test(text))) taken.add(name)
  }
  if (taken.has('zstd')) return 'zstd'
  return taken.has('gzip') ? 'gzip' : undefined
}
