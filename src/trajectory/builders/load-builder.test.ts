import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadBuilder } from './load-builder.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-builder-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

async function moduleOf(name: string, source: string): Promise<string> {
  await writeFile(join(dir, name), source)
  return join(dir, name)
}

test('loadBuilder() returns the export of a JavaScript or TypeScript module', async () => {
  const path = await moduleOf(
    'mine.mts',
    "export const builder: { name: string; plan: () => unknown } = { name: 'mine', plan: () => ({ rows: [], leftOut: new Map() }) }",
  )
  expect((await loadBuilder(path, { allowed: [path] })).name).toBe('mine')
})

test('loadBuilder() does not run a module that is not allowed', async () => {
  const path = await moduleOf('hostile.mjs', 'globalThis.wasRun = true; export const builder = {}')
  const problem = { code: 'config.invalid', message: expect.stringContaining('not on the list') }
  await expect(loadBuilder(path, { allowed: [join(dir, 'other.mjs')] })).rejects.toMatchObject(problem)
  expect('wasRun' in globalThis).toBe(false)
})

test.each([
  ['nothing.mjs', 'export const other = 1', 'must export "builder"'],
  ['shape.mjs', "export const builder = { name: 'x' }", 'lacks a function plan()'],
  ['broken.mjs', 'throw new Error("on purpose")', 'cannot be loaded: on purpose'],
])('loadBuilder() reports the problem of %s', async (name, source, message) => {
  const path = await moduleOf(name, source)
  const problem = { code: 'config.invalid', message: expect.stringContaining(message) }
  await expect(loadBuilder(path, { allowed: [path] })).rejects.toMatchObject(problem)
})
