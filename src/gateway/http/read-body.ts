import type { IncomingMessage } from 'node:http'
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate, zstdDecompress } from 'node:zlib'
import { holdsMoreValuesThan, nestsDeeperThan } from '../../lib/json/json-depth.ts'
import type { JsonMemory, ParsedJson } from '../../lib/json/json-memory.ts'
import { RolloutError } from '../../model/failure.ts'
import type { HeldBody } from './body-budget.ts'
import type { JsonBody } from '../dialects/dialect.ts'

export interface BodyLimits {
  /** Limit of the body as sent, and of its decompressed bytes. */
  maxBytes: number
  maxDepth: number
  maxValues: number
}

/** Anthropic's own API has the same limit. Parsing a larger body would block the other sessions for over a second. */
export const DEFAULT_LIMITS: BodyLimits = { maxBytes: 32 * 1024 * 1024, maxDepth: 128, maxValues: 1_000_000 }

type Held = Pick<HeldBody, 'bytes' | 'grow' | 'shrinkTo'>

/**
 * Reads a JSON body. Throws RolloutError for any other body, and never holds more bytes than the limits allow. `memory`:
 * earlier bodies of the session, whose parsed parts are used again. `held`: acquires the bytes before they are read.
 */
export async function readJsonBody(
  request: IncomingMessage,
  limits: BodyLimits,
  memory: JsonMemory,
  held: Held,
): Promise<JsonBody> {
  const raw = await readBytes(request, limits.maxBytes, held)
  const bytes = await decompress(raw, request.headers['content-encoding'], limits.maxBytes, held)
  assertFewValues(bytes, limits.maxValues)
  if (bytes.length > PARSED_BYTES && nestsDeeperThan(bytes, limits.maxDepth)) throw tooDeep(limits.maxDepth)
  const text = decodeUtf8(bytes)
  const { value, added } = parse(text, memory)
  // The added elements are two levels deep; the rest was checked with an earlier body.
  const isTooDeep =
    added === undefined ? isDeeperThan(value, limits.maxDepth) : isDeeperThan(added, limits.maxDepth - 1)
  if (isTooDeep) {
    memory.forget(text)
    throw tooDeep(limits.maxDepth)
  }
  return { text, value }
}

/** The depth of longer bodies is checked before parsing: the parser needs about 80 bytes and 250 ns for each level. */
const PARSED_BYTES = 256 * 1024

function tooDeep(maxDepth: number): RolloutError {
  return new RolloutError('request.malformed', `The body is nested deeper than ${maxDepth} levels.`)
}

function assertFewValues(bytes: Buffer, maxValues: number): void {
  // A value has at least two bytes, so most bodies are too short to exceed the limit.
  if (bytes.length <= 2 * maxValues || !holdsMoreValuesThan(bytes, maxValues)) return
  throw new RolloutError('request.malformed', `The body holds more than ${maxValues} values.`)
}

/** Bytes acquired at a time for a body without content-length. */
const GROWTH_BYTES = 256 * 1024

async function readBytes(request: IncomingMessage, maxBytes: number, held: Held): Promise<Buffer> {
  const stated = Number(request.headers['content-length'] ?? 0)
  if (stated > maxBytes) throw tooLarge(maxBytes)
  const admitted = held.grow(stated)
  if (admitted !== undefined) {
    await admitted
    // The events of the request were missed.
    if (request.destroyed) throw clientGone()
  }
  const pieces: Buffer[] = []
  let size = 0
  // Events, because an async iterator costs as much as all other work on a body.
  await new Promise<void>((resolve, reject) => {
    request.on('data', (piece: Buffer) => {
      size += piece.length
      // The socket stays open for the error response.
      if (size > maxBytes) return reject(tooLarge(maxBytes))
      pieces.push(piece)
      const more = size > held.bytes ? held.grow(GROWTH_BYTES + size - held.bytes) : undefined
      if (more === undefined) return
      request.pause()
      more.then(() => request.resume(), reject)
    })
    request.on('end', resolve)
    request.on('error', reject)
    request.on('close', () => {
      if (!request.readableEnded) reject(clientGone())
    })
  })
  return pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces, size)
}

const decoders = {
  gzip: promisify(gunzip),
  deflate: promisify(inflate),
  br: promisify(brotliDecompress),
  zstd: promisify(zstdDecompress),
} as const

async function decompress(bytes: Buffer, encoding: string | undefined, maxBytes: number, held: Held): Promise<Buffer> {
  const name = encoding?.trim().toLowerCase() ?? 'identity'
  if (name === 'identity' || name === '') return bytes
  const decode = Object.hasOwn(decoders, name) ? decoders[name as keyof typeof decoders] : undefined
  if (decode === undefined) {
    throw new RolloutError('request.unsupported-encoding', `Content-Encoding "${name.slice(0, 40)}" is not supported.`)
  }
  // The decompressed size is unknown.
  await held.grow(maxBytes)
  try {
    const unpacked = await decode(bytes, { maxOutputLength: maxBytes })
    held.shrinkTo(bytes.length + unpacked.length)
    return unpacked
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge(maxBytes)
    throw new RolloutError('request.malformed', `The body is not valid ${name}.`, { cause: error })
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true })

function decodeUtf8(bytes: Buffer): string {
  try {
    return utf8.decode(bytes)
  } catch (error) {
    throw new RolloutError('request.malformed', 'The body is not valid UTF-8.', { cause: error })
  }
}

function parse(text: string, memory: JsonMemory): ParsedJson {
  try {
    return memory.parse(text)
  } catch (error) {
    const reason = error instanceof Error ? error.message.slice(0, 200) : 'not JSON'
    throw new RolloutError('request.malformed', `The body is not valid JSON: ${reason}`, { cause: error })
  }
}

function isDeeperThan(value: unknown, limit: number): boolean {
  let level: object[] = isContainer(value) ? [value] : []
  for (let depth = 1; level.length > 0; depth++) {
    if (depth > limit) return true
    const next: object[] = []
    for (const container of level) {
      for (const child of Object.values(container)) if (isContainer(child)) next.push(child)
    }
    level = next
  }
  return false
}

function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

function clientGone(): RolloutError {
  return new RolloutError('request.client-gone', 'The harness closed the call.')
}

function tooLarge(maxBytes: number): RolloutError {
  return new RolloutError('request.too-large', `The body is larger than ${maxBytes} bytes.`)
}
