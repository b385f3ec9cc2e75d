import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { WebSocket } from 'undici'
import { encodeFrame, OPCODES, readMessages, type WebSocketMessage } from './frames.ts'

async function* cut(bytes: Buffer, sizes: readonly number[]): AsyncGenerator<Buffer, void, undefined> {
  let at = 0
  for (let index = 0; at < bytes.length; index += 1) {
    const size = sizes[index % sizes.length]!
    yield Buffer.from(bytes.subarray(at, at + size))
    at += size
  }
}

async function all(source: AsyncIterable<WebSocketMessage>): Promise<WebSocketMessage[]> {
  const messages: WebSocketMessage[] = []
  for await (const { opcode, data } of source) messages.push({ opcode, data: Buffer.from(data) })
  return messages
}

test('readMessages() returns what encodeFrame() encoded, masked or not, however the bytes are split', async () => {
  const payload = fc.oneof(fc.uint8Array({ maxLength: 300 }), fc.constant(new Uint8Array(70_000).fill(7)))
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.tuple(fc.constantFrom(2, 9, 10), payload, fc.boolean()), { maxLength: 6 }),
      fc.array(fc.integer({ min: 1, max: 5000 }), { minLength: 1, maxLength: 5 }),
      async (frames, sizes) => {
        const bytes = Buffer.concat(frames.map(([opcode, data, isMasked]) => encodeFrame(opcode, data, isMasked)))
        const expected = frames.map(([opcode, data]) => ({ opcode, data: Buffer.from(data) }))
        expect(await all(readMessages(cut(bytes, sizes)))).toEqual(expected)
      },
    ),
    { numRuns: 50 },
  )
})

test('readMessages() joins fragments and yields control frames between them', async () => {
  const first = encodeFrame(OPCODES.binary, Buffer.from('one '), false)
  first[0]! &= 0x7f
  const ping = encodeFrame(OPCODES.ping, Buffer.from('?'), false)
  const last = encodeFrame(OPCODES.continuation, Buffer.from('two'), false)
  expect(await all(readMessages(cut(Buffer.concat([first, ping, last]), [3])))).toEqual([
    { opcode: OPCODES.ping, data: Buffer.from('?') },
    { opcode: OPCODES.binary, data: Buffer.from('one two') },
  ])
})

test('readMessages() rejects a frame with an excessive length', async () => {
  const frame = Buffer.from([0x82, 127, 0, 0, 1, 0, 0, 0, 0, 0])
  await expect(all(readMessages(cut(frame, [10])))).rejects.toThrow('too long')
})

test('frames are compatible with another WebSocket implementation', async () => {
  const server = createServer()
  const serve = async (request: IncomingMessage, socket: Duplex) => {
    const key = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`
    const accept = createHash('sha1').update(key).digest('base64')
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
    )
    for await (const { opcode, data } of readMessages(socket))
      if (opcode !== OPCODES.close) socket.write(encodeFrame(opcode, data, false))
      else socket.end(encodeFrame(OPCODES.close, data, false))
  }
  server.on('upgrade', (request, socket) => void serve(request, socket))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const client = new WebSocket(`ws://127.0.0.1:${port}`)
  client.binaryType = 'arraybuffer'
  await once(client, 'open')
  for (const size of [1, 125, 126, 65_535, 65_536, 200_000]) {
    const sent = Buffer.alloc(size, size)
    client.send(sent)
    const [event] = (await once(client, 'message')) as [MessageEvent]
    expect(Buffer.from(event.data as ArrayBuffer).equals(sent)).toBe(true)
  }
  client.close()
  await once(client, 'close')
  server.close()
})
