import { randomBytes } from 'node:crypto'

export const OPCODES = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

export interface WebSocketMessage {
  opcode: number
  data: Buffer
}

/** A server's messages have tens of kilobytes. */
const MAX_BYTES = 32 * 1024 * 1024

/** Encodes one final WebSocket frame (RFC 6455, section 5.2). Clients mask their frames, servers do not. */
export function encodeFrame(opcode: number, data: Uint8Array, isMasked: boolean): Buffer {
  const { length } = data
  const header = Buffer.alloc(2 + (length < 126 ? 0 : length < 65_536 ? 2 : 8))
  header[0] = 0x80 | opcode
  if (header.length === 2) header[1] = length
  else if (header.length === 4) {
    header[1] = 126
    header.writeUInt16BE(length, 2)
  } else {
    header[1] = 127
    header.writeBigUInt64BE(BigInt(length), 2)
  }
  if (!isMasked) return Buffer.concat([header, data])
  header.writeUInt8((header[1] ?? 0) | 0x80, 1)
  const mask = randomBytes(4)
  const frame = Buffer.concat([header, mask, data])
  applyMask(frame.subarray(header.length + 4), mask)
  return frame
}

/** Yields complete messages in order. Joins fragments; control frames may come between them. */
export async function* readMessages(source: AsyncIterable<Buffer>): AsyncGenerator<WebSocketMessage, void, undefined> {
  let rest: Buffer = Buffer.alloc(0)
  let fragments: Buffer[] = []
  let opcode = 0
  for await (const chunk of source) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    for (;;) {
      const head = parseHead(rest)
      if (head === undefined || rest.length < head.end) break
      const data = rest.subarray(head.start, head.end)
      if (head.mask !== undefined) applyMask(data, head.mask)
      rest = rest.subarray(head.end)
      if (head.opcode >= OPCODES.close) {
        yield { opcode: head.opcode, data }
        continue
      }
      if (head.opcode !== OPCODES.continuation) opcode = head.opcode
      fragments.push(data)
      if (fragments.reduce((sum, { length }) => sum + length, 0) > MAX_BYTES)
        throw new Error('a WebSocket message is too long')
      if (!head.isFinal) continue
      yield { opcode, data: fragments.length === 1 ? data : Buffer.concat(fragments) }
      fragments = []
    }
  }
}

interface Head {
  opcode: number
  isFinal: boolean
  mask: Buffer | undefined
  /** Offset of the payload. */
  start: number
  end: number
}

/** Returns undefined if the header is incomplete. */
function parseHead(bytes: Buffer): Head | undefined {
  if (bytes.length < 2) return undefined
  const [first, second] = [bytes[0]!, bytes[1]!]
  const short = second & 0x7f
  const lengthBytes = short === 126 ? 2 : short === 127 ? 8 : 0
  const hasMask = (second & 0x80) !== 0
  const start = 2 + lengthBytes + (hasMask ? 4 : 0)
  if (bytes.length < start) return undefined
  const length =
    lengthBytes === 0 ? short : lengthBytes === 2 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2))
  if (length > MAX_BYTES) throw new Error('a WebSocket frame is too long')
  return {
    opcode: first & 0x0f,
    isFinal: (first & 0x80) !== 0,
    mask: hasMask ? bytes.subarray(start - 4, start) : undefined,
    start,
    end: start + length,
  }
}

function applyMask(data: Buffer, mask: Buffer): void {
  const [a, b, c, d] = [mask[0]!, mask[1]!, mask[2]!, mask[3]!]
  let at = 0
  for (; at + 4 <= data.length; at += 4) {
    data[at]! ^= a
    data[at + 1]! ^= b
    data[at + 2]! ^= c
    data[at + 3]! ^= d
  }
  for (let index = 0; at + index < data.length; index += 1) data[at + index]! ^= mask[index]!
}
