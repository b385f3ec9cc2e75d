import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib'
import { type Example, hostileJson } from './hostile-json.ts'
import type { Random } from './random.ts'

export interface Target {
  method: string
  path: string
  headers: Readonly<Record<string, string>>
  /** Valid bodies. Empty: the target accepts no body. */
  examples: readonly Example[]
}

/** Bytes to write to a connection, in pieces; a pause follows each. */
export interface Attack {
  pieces: readonly Buffer[]
  pauseMs: number
  /** The sender half-closes or destroys the connection after the last piece. */
  end: 'wait' | 'half-close' | 'cut'
}

/** One of this many attacks has a body of the maximum size, and one of this many a body of a megabyte. */
const LARGEST = 500
const LARGE = 50
const SMALL_BYTES = 8 * 1024

export function hostileAttack(random: Random, targets: readonly Target[], maxBytes: number): Attack {
  if (random.oneIn(12)) return { pieces: [garbage(random)], pauseMs: 0, end: random.pick(['half-close', 'cut']) }
  const target = random.pick(targets)
  const body = target.examples.length === 0 ? Buffer.alloc(0) : hostileBody(random, target.examples, maxBytes)
  return frame(random, target, body)
}

interface Body {
  bytes: Buffer
  encoding?: string
}

function hostileBody(random: Random, examples: readonly Example[], maxBytes: number): Buffer | Body {
  const limit = random.oneIn(LARGEST) ? maxBytes : random.oneIn(LARGE) ? 1024 ** 2 : SMALL_BYTES
  const size = Math.max(16, Math.floor(limit * (limit === maxBytes ? 0.9 : random.next())))
  const text = Buffer.from(hostileJson(random, examples, size))
  if (random.oneIn(10)) return spoil(random, text)
  return random.oneIn(10) ? compress(random, text, maxBytes) : text
}

function spoil(random: Random, text: Buffer): Buffer {
  const at = random.below(text.length + 1)
  switch (random.below(4)) {
    case 0:
      return text.subarray(0, at)
    case 1:
      return Buffer.concat([text, text])
    case 2:
      return Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), text])
    default:
      return Buffer.concat([text.subarray(0, at), Buffer.from([0xff, 0xc0, 0xaf, 0xed, 0xa0, 0x80]), text.subarray(at)])
  }
}

const ENCODINGS = { gzip: gzipSync, deflate: deflateSync, br: brotliCompressSync, zstd: zstdCompressSync } as const

function compress(random: Random, text: Buffer, maxBytes: number): Body {
  const encoding = random.pick(Object.keys(ENCODINGS) as (keyof typeof ENCODINGS)[])
  // A few kilobytes that decompress to twice the limit of a body.
  const isBomb = random.oneIn(20)
  const bytes = encoding === 'br' ? brotliCompressSync(text.subarray(0, 1024 ** 2)) : ENCODINGS[encoding](text)
  if (isBomb) return { bytes: gzipSync(Buffer.alloc(2 * maxBytes, 0x20)), encoding: 'gzip' }
  switch (random.below(4)) {
    case 0:
      return { bytes: bytes.subarray(0, random.below(bytes.length)), encoding }
    case 1:
      return { bytes: text, encoding }
    default:
      return { bytes, encoding }
  }
}

function frame(random: Random, { method, path, headers }: Target, given: Buffer | Body): Attack {
  const { bytes, encoding } = Buffer.isBuffer(given) ? { bytes: given, encoding: undefined } : given
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
  if (encoding !== undefined) lines.push(`content-encoding: ${encoding}`)
  if (random.oneIn(15)) lines.push(oddHeader(random))
  const head = (...more: string[]): Buffer =>
    Buffer.from(`${method} ${path} HTTP/1.1\r\n${[...lines, ...more].join('\r\n')}\r\n\r\n`, 'latin1')
  switch (random.below(14)) {
    case 0:
      return { pieces: [head('transfer-encoding: chunked'), ...chunks(bytes)], pauseMs: 0, end: 'wait' }
    case 1: {
      const wrong = random.pick([bytes.length + 100, Math.max(0, bytes.length - 3), -1, 1e15, 'x', '1, 2'])
      return { pieces: [head(`content-length: ${wrong}`), bytes], pauseMs: 0, end: 'half-close' }
    }
    case 2: {
      const chunk = random.pick(['zz\r\n', '-1\r\n', 'ffffffffffffffff\r\n', '5\r\nab', '3;x=\r\nabc\r\n'])
      return { pieces: [head('transfer-encoding: chunked'), Buffer.from(chunk)], pauseMs: 0, end: 'half-close' }
    }
    case 3: {
      const both = ['content-length: 5', 'transfer-encoding: chunked']
      return { pieces: [head(...both), bytes.subarray(0, SMALL_BYTES)], pauseMs: 0, end: 'half-close' }
    }
    case 4: {
      // A few bytes at a time, without an end.
      const pieces = [head(`content-length: ${bytes.length}`), ...pieceUp(bytes.subarray(0, 40), 8)]
      return { pieces, pauseMs: 10, end: 'cut' }
    }
    case 5:
      return { pieces: [head(`content-length: ${bytes.length}`), bytes], pauseMs: 0, end: 'cut' }
    default:
      return { pieces: [head(`content-length: ${bytes.length}`), bytes], pauseMs: 0, end: 'wait' }
  }
}

function chunks(bytes: Buffer): Buffer[] {
  const parts = pieceUp(bytes, 64 * 1024).map((part) =>
    Buffer.concat([Buffer.from(`${part.length.toString(16)}\r\n`), part, Buffer.from('\r\n')]),
  )
  return [...parts, Buffer.from('0\r\n\r\n')]
}

function pieceUp(bytes: Buffer, length: number): Buffer[] {
  return Array.from({ length: Math.ceil(bytes.length / length) }, (_, i) =>
    bytes.subarray(i * length, (i + 1) * length),
  )
}

function oddHeader(random: Random): string {
  return random.pick([
    'x-odd: \u00ff\u00fe\u0080',
    `x-long: ${'a'.repeat(15_000)}`,
    'expect: 100-continue',
    'expect: something-else',
    'connection: upgrade\r\nupgrade: websocket',
    'trailer: x',
    'te: trailers',
    'content-type: text/plain',
    'content-type: application/json; charset=utf-7',
    'x-stainless-retry-count: 1e9',
    'idempotency-key: \u0001',
    'accept-encoding: \u00e9',
    'host: ',
    'host: a\r\nhost: b',
    'cookie: a=b',
    'origin: http://evil.example',
    ' folded: x',
  ])
}

function garbage(random: Random): Buffer {
  const bytes = Buffer.from(Array.from({ length: 1 + random.below(2000) }, () => random.below(256)))
  return random.pick([
    bytes,
    Buffer.from('GET /\r\n\r\n'),
    Buffer.from('\r\n\r\n\r\n'),
    Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
    Buffer.from(`GET ${'/a'.repeat(20_000)} HTTP/1.1\r\nhost: x\r\n\r\n`),
    Buffer.from('CONNECT x:99999 HTTP/1.1\r\nhost: x\r\n\r\n'),
    Buffer.from('OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n'),
    Buffer.from('GET /%zz%00%c0%af/../.. HTTP/1.1\r\nhost: x\r\n\r\n'),
    Buffer.from('POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n'.repeat(50)),
    Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]),
  ])
}
