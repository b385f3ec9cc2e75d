import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { BoundedCache } from './bounded-cache.ts'

const MINUTE = 60_000
const MB = 1024 * 1024

let dir: string
let now: number
let cache: BoundedCache
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-cache-'))
  now = Date.UTC(2026, 0, 1)
  cache = new BoundedCache(dir, { maxBytes: 2.5 * MB, maxAgeMs: 24 * 60 * MINUTE }, () => now)
})
afterEach(() => rm(dir, { recursive: true, force: true }))

async function make(name: string): Promise<void> {
  await cache.exclusively(name, AbortSignal.timeout(5000), async () => {
    await mkdir(cache.pathOf(name))
    await writeFile(join(cache.pathOf(name), 'data'), Buffer.alloc(MB, 1))
    await cache.keep(name)
  })
}

const folders = async (): Promise<string[]> =>
  (await readdir(dir, { withFileTypes: true })).filter((file) => file.isDirectory()).map(({ name }) => name)

test('keep() evicts the least recently used entries over the size limit, but none that was used in the last minutes', async () => {
  await make('a')
  now += MINUTE
  await make('b')
  now += 20 * MINUTE
  await cache.using('a', async () => {})
  await make('c')
  expect(await folders()).toEqual(['a', 'c'])
  await make('d')
  expect(await folders(), 'too much, and all of it new').toEqual(['a', 'c', 'd'])
  expect([await cache.has('a'), await cache.has('b')]).toEqual([true, false])
})

test('keep() evicts entries that were not used for long, whatever their size', async () => {
  await make('a')
  now += 25 * 60 * MINUTE
  await make('b')
  expect(await folders()).toEqual(['b'])
})

test('keep() keeps entries in use and in creation, and removes incomplete entries of dead processes', async () => {
  await make('used')
  await make('made')
  await mkdir(cache.pathOf('half'))
  await mkdir(cache.pathOf('other'))
  now += 48 * 60 * MINUTE
  const signal = AbortSignal.timeout(5000)
  await cache.using('used', () =>
    cache.exclusively('made', signal, () => cache.exclusively('other', signal, () => make('new'))),
  )
  expect(await folders()).toEqual(['made', 'new', 'other', 'used'])
})

test('exclusively() runs one caller at a time, and an aborted caller does not block the others', async () => {
  const done: string[] = []
  const begun = Promise.withResolvers<void>()
  const { promise: first, resolve } = Promise.withResolvers<void>()
  const one = cache.exclusively('x', AbortSignal.timeout(5000), async () => {
    begun.resolve()
    await first
    done.push('one')
  })
  await begun.promise
  const impatient = cache.exclusively('x', AbortSignal.timeout(50), async () => done.push('impatient'))
  const two = cache.exclusively('x', AbortSignal.timeout(5000), async () => done.push('two'))
  await expect(impatient).rejects.toMatchObject({ name: expect.stringMatching(/AbortError|TimeoutError/) })
  resolve()
  await Promise.all([one, two])
  expect(done).toContain('two')
  expect(done).not.toContain('impatient')
})
