import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createUpstream, type UpstreamConfig } from './index.ts'
import { loadUpstream } from './load-upstream.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-upstream-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

const ZOD = import.meta.resolve('zod')

async function load(name: string, source: string): ReturnType<typeof loadUpstream> {
  const path = join(dir, name)
  await writeFile(path, `import * as z from ${JSON.stringify(ZOD)}\n${source}`)
  return loadUpstream(path)
}

const CONFIG = `z.strictObject({ kind: z.literal('mine'), url: z.string() })`
const METHODS = 'send() {}, tokenise() {}, countTokens() {}, listModels: () => ["m"], contextTokens() {}, probe() {}'

function create(plug: Awaited<ReturnType<typeof loadUpstream>>, config: object): ReturnType<typeof createUpstream> {
  return createUpstream(config as UpstreamConfig, { now: () => 0, plug })
}

test('createUpstream() creates the upstream of a module with its own config', async () => {
  const made = `({ kind, url }) => ({ kind, url, capabilities: {}, ${METHODS} })`
  const plug = await load('good.mjs', `export const upstream = { config: ${CONFIG}, create: ${made} }`)
  const upstream = create(plug, { kind: 'mine', url: 'http://x' })
  expect([upstream.kind, upstream.url]).toEqual(['mine', 'http://x'])
  expect(() => create(plug, { kind: 'mine', url: 1 })).toThrow('The config of the upstream module')
})

test('a module without an upstream and an upstream without its methods are config errors', async () => {
  await expect(load('none.mjs', 'export const other = 1')).rejects.toMatchObject({ code: 'config.invalid' })
  const plug = await load('bare.mjs', `export const upstream = { config: ${CONFIG}, create: () => ({ kind: 'mine' }) }`)
  expect(() => create(plug, { kind: 'mine', url: 'http://x' })).toThrow('lacks url, a string')
})
