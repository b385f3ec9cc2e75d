import { constants, createZstdCompress, zstdCompressSync } from 'node:zlib'
import { buffer } from 'node:stream/consumers'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { endsWithZstdFrame } from './zstd-frames.ts'

const texts = fc.array(
  fc.oneof(
    fc.string(),
    fc.nat(300_000).map((count) => 'x'.repeat(count)),
  ),
  { maxLength: 6 },
)

test('endsWithZstdFrame() is true for complete frames and false for truncated ones', async () => {
  await fc.assert(
    fc.asyncProperty(texts, fc.boolean(), fc.nat(), async (pieces, hasChecksum, place) => {
      const params = { [constants.ZSTD_c_checksumFlag]: hasChecksum ? 1 : 0 }
      const atOnce = zstdCompressSync(pieces.join(''), { params })
      const stream = createZstdCompress({ params, flush: constants.ZSTD_e_flush })
      const made = buffer(stream)
      for (const piece of pieces) stream.write(piece)
      stream.end()
      const flushed = await made
      const skipped = Buffer.from([0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3])
      // The other may have several frames, and be cut between them.
      expect(endsWithZstdFrame(atOnce.subarray(0, place % atOnce.length))).toBe(false)
      for (const whole of [atOnce, flushed]) {
        expect(endsWithZstdFrame(whole)).toBe(true)
        expect(endsWithZstdFrame(Buffer.concat([whole, skipped, whole]))).toBe(true)
        expect(endsWithZstdFrame(whole.subarray(0, -1))).toBe(false)
        expect(endsWithZstdFrame(Buffer.concat([whole, Buffer.from('x')]))).toBe(false)
      }
    }),
    { numRuns: 200 },
  )
})
