import fc from 'fast-check'
import { expect, test } from 'vitest'
import { CHUNK_TOKENS, nextPiece, sharedChunks } from './reading-plan.ts'

function cuts(length: number): number[] {
  const positions: number[] = []
  for (let at = 0; at < length; at += nextPiece(at, length)) positions.push(at)
  return positions
}

test('every token is read once, the first and the last tokens one by one', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 3000 }), (length) => {
      const positions = [...cuts(length), length]
      expect(positions.every((position, i) => i === 0 || position > positions[i - 1]!)).toBe(true)
      const alone = positions.filter((position, i) => positions[i + 1] === position + 1)
      for (let i = 0; i < Math.min(8, length); i++) expect(alone).toContain(i)
      for (let i = Math.max(0, length - 16); i < length; i++) expect(alone).toContain(i)
    }),
  )
})

test('cacheable chunks have the same pieces in every longer prompt', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 2000 }), fc.nat(2000), (length, more) => {
      const shared = sharedChunks(length) * CHUNK_TOKENS
      const before = (positions: number[]): number[] => positions.filter((position) => position < shared)
      expect(before(cuts(length + more))).toEqual(before(cuts(length)))
      expect(shared === 0 || cuts(length).includes(shared)).toBe(true)
      expect(shared).toBeLessThan(length)
    }),
  )
})
