import { expect, test } from 'vitest'
import type { KeyValues } from './key-values.ts'
import { PrefixCache } from './prefix-cache.ts'
import { CHUNK_TOKENS } from './reading-plan.ts'

/** One head and one element: the key-value of a token is its id. */
function stateOf(ids: Int32Array, length = ids.length): KeyValues {
  return { length, tensors: [Float32Array.from(ids.subarray(0, length))] }
}

function prompt(chunks: number, tail: number, seed = 0): Int32Array {
  return Int32Array.from({ length: chunks * CHUNK_TOKENS + tail }, (_, i) => ((i * 31 + seed * 7) % 1000) + seed)
}

const CHUNK_BYTES = CHUNK_TOKENS * 4

function cacheOf(chunks: number): PrefixCache {
  return new PrefixCache({ capacityBytes: chunks * CHUNK_BYTES, keyValueHeads: 1 })
}

function read(cache: PrefixCache, ids: Int32Array): number {
  const known = cache.find(ids)?.length ?? 0
  for (let end = known + CHUNK_TOKENS; end <= ids.length; end += CHUNK_TOKENS) cache.add(ids, stateOf(ids, end))
  return known
}

test('find() returns the cached prompt up to the last chunk boundary', () => {
  const cache = cacheOf(10)
  const ids = prompt(3, 20)
  expect(cache.find(ids)).toBeUndefined()
  read(cache, ids)
  expect(cache.find(ids)).toEqual(stateOf(ids, 3 * CHUNK_TOKENS))
  expect(cache.find(ids.subarray(0, 2 * CHUNK_TOKENS + 20))).toEqual(stateOf(ids, 2 * CHUNK_TOKENS))
})

test('find() does not return the last tokens', () => {
  const cache = cacheOf(10)
  const ids = prompt(2, 0)
  read(cache, ids)
  expect(cache.find(ids)?.length).toBe(CHUNK_TOKENS)
  expect(cache.find(ids.subarray(0, CHUNK_TOKENS))).toBeUndefined()
})

test('find() returns a chunk only after the same prefix', () => {
  const cache = cacheOf(10)
  const [one, other] = [prompt(2, 1, 1), prompt(2, 1, 2)]
  read(cache, one)
  read(cache, other)
  const mixed = Int32Array.from([...one.subarray(0, CHUNK_TOKENS), ...other.subarray(CHUNK_TOKENS)])
  expect(cache.find(mixed)).toEqual(stateOf(one, CHUNK_TOKENS))
})

test('prompts share common chunks', () => {
  const cache = cacheOf(10)
  const ids = prompt(4, 1)
  read(cache, ids.subarray(0, 3 * CHUNK_TOKENS + 1))
  expect(read(cache, ids)).toBe(3 * CHUNK_TOKENS)
  expect(cache.byteLength).toBe(4 * CHUNK_BYTES)
})

test('the cache never exceeds its size and evicts the least recently used chunks, from the end of a prompt', () => {
  const cache = cacheOf(5)
  const [one, two, three] = [prompt(2, 20, 1), prompt(2, 20, 2), prompt(2, 20, 3)]
  read(cache, one)
  read(cache, two)
  read(cache, one)
  read(cache, three)
  expect(cache.byteLength).toBeLessThanOrEqual(5 * CHUNK_BYTES)
  expect(cache.find(one)?.length).toBe(2 * CHUNK_TOKENS)
  expect(cache.find(two)?.length).toBe(CHUNK_TOKENS)
  expect(cache.find(three)?.length).toBe(2 * CHUNK_TOKENS)
})

test('a cache of size 0 stores nothing', () => {
  const cache = cacheOf(0)
  expect([read(cache, prompt(2, 1)), read(cache, prompt(2, 1)), cache.byteLength]).toEqual([0, 0, 0])
})
