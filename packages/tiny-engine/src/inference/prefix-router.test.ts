import { expect, test } from 'vitest'
import { CHUNK_TOKENS } from './reading-plan.ts'
import { PrefixRouter } from './prefix-router.ts'

const long = (seed: number) => new Int32Array(CHUNK_TOKENS + 1).fill(seed)
const workers = (...loads: number[]) => loads.map((load) => ({ load }))

test('choose() returns the least busy worker for a new prefix', () => {
  const [a, b] = workers(3, 1)
  const router = new PrefixRouter<{ load: number }>()
  expect(router.choose(long(1), [a!, b!])).toBe(b)
  expect(router.choose(Int32Array.of(1, 2), [a!, b!])).toBe(b)
})

test('choose() returns the worker that has cached the prefix, unless it is much busier', () => {
  const [a, b] = workers(0, 0)
  const router = new PrefixRouter<{ load: number }>()
  expect(router.choose(long(1), [a!, b!])).toBe(a)
  a!.load = 1
  expect(router.choose(long(1), [a!, b!])).toBe(a)
  expect(router.choose(long(2), [a!, b!])).toBe(b)
  a!.load = 2
  expect(router.choose(long(1), [a!, b!])).toBe(b)
  b!.load = 1
  expect(router.choose(long(1), [a!, b!])).toBe(b)
})

test('choose() does not remember a prefix that is the whole prompt', () => {
  const [a, b] = workers(0, 0)
  const router = new PrefixRouter<{ load: number }>()
  expect(router.choose(long(1).subarray(0, CHUNK_TOKENS), [a!, b!])).toBe(a)
  a!.load = 1
  expect(router.choose(long(1), [a!, b!])).toBe(b)
})

test('choose() ignores a forgotten worker, and evicts the oldest of many prefixes', () => {
  const [a, b] = workers(0, 0)
  const router = new PrefixRouter<{ load: number }>()
  router.choose(long(1), [a!, b!])
  router.forget(a!)
  a!.load = 1
  expect(router.choose(long(1), [a!, b!])).toBe(b)
  for (let seed = 2; seed < 1100; seed++) router.choose(long(seed), [a!, b!])
  b!.load = 2
  expect(router.choose(long(1), [a!, b!])).toBe(a)
})

test('choose() returns undefined without workers', () => {
  expect(new PrefixRouter().choose(long(1), [])).toBeUndefined()
})
