import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readFrames, type OutputFrame } from './frames.ts'

const frame = fc.record({
  stream: fc.constantFrom('stdout' as const, 'stderr' as const),
  data: fc.uint8Array({ maxLength: 40 }),
})

test('readFrames() returns the bytes of each stream, however the input is split', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(frame, { maxLength: 8 }), fc.integer({ min: 1, max: 30 }), async (frames, cut) => {
      const wire = Buffer.concat(frames.map(({ stream, data }) => encode(stream === 'stdout' ? 1 : 2, data)))
      const got = await collect(inPieces(wire, cut))
      for (const stream of ['stdout', 'stderr'] as const) expect(bytesOf(got, stream)).toEqual(bytesOf(frames, stream))
    }),
  )
})

test('readFrames() drops frames of unknown streams', async () => {
  const wire = Buffer.concat([encode(0, Buffer.from('input')), encode(1, Buffer.from('output'))])
  expect(bytesOf(await collect(inPieces(wire, 3)), 'stdout').toString()).toBe('output')
})

function encode(stream: number, data: Uint8Array): Buffer {
  const header = Buffer.from([stream, 0, 0, 0, 0, 0, 0, 0])
  header.writeUInt32BE(data.length, 4)
  return Buffer.concat([header, data])
}

async function* inPieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}

async function collect(source: AsyncIterable<Buffer>): Promise<OutputFrame[]> {
  const frames: OutputFrame[] = []
  for await (const each of readFrames(source)) frames.push({ ...each, data: Buffer.from(each.data) })
  return frames
}

function bytesOf(frames: readonly { stream: string; data: Uint8Array }[], stream: string): Buffer {
  return Buffer.concat(frames.filter((each) => each.stream === stream).map(({ data }) => data))
}
