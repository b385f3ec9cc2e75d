import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createExporter } from './create-exporter.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-exporter-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

async function moduleOf(name: string, source: string): Promise<string> {
  await writeFile(join(dir, name), source)
  return join(dir, name)
}

const plugOf = (instance: string) => `
import * as z from '${import.meta.resolve('zod')}'
export const exporter = {
  config: z.strictObject({ kind: z.literal('mine'), suffix: z.string().default('txt') }),
  create: ({ suffix }: { suffix: string }) => (${instance}),
}`
const whole = `{ name: 'mine', extension: suffix, isAppendable: true, open: () => ({ add: () => ['x'], end: () => [] }) }`

test('createExporter() creates a built-in exporter by name with its options', async () => {
  const exporter = await createExporter({ format: 'sharegpt', config: { reasoning: 'drop' } }, { allowed: [] })
  expect(exporter.name).toBe('sharegpt')
})

test('createExporter() loads an allowed module and passes its options', async () => {
  const path = await moduleOf('mine.mts', plugOf(whole))
  const exporter = await createExporter({ format: path, config: { suffix: 'rows' } }, { allowed: [path] })
  expect(exporter).toMatchObject({ name: 'mine', extension: 'rows', isAppendable: true })
})

test('createExporter() does not run a module that is not allowed', async () => {
  const path = await moduleOf('hostile.mjs', 'globalThis.exporterRan = true; export const exporter = {}')
  const refusal = { code: 'config.invalid', message: expect.stringContaining('not on the list') }
  await expect(createExporter({ format: path, config: {} }, { allowed: [] })).rejects.toMatchObject(refusal)
  expect('exporterRan' in globalThis).toBe(false)
})

test.each([
  ['nothing.mjs', 'export const other = 1', {}, 'must export "exporter"'],
  ['no-create.mjs', 'export const exporter = { config: {} }', {}, 'lacks a function create()'],
  ['no-open.mts', plugOf("{ name: 'mine', extension: suffix, isAppendable: true }"), {}, 'lacks a function open()'],
  ['options.mts', plugOf(whole), { suffix: 1, other: 2 }, 'suffix: '],
])('createExporter() reports the problem of %s', async (name, source, config, message) => {
  const path = await moduleOf(name, source)
  const refusal = { code: 'config.invalid', message: expect.stringContaining(message) }
  await expect(createExporter({ format: path, config }, { allowed: [path] })).rejects.toMatchObject(refusal)
})

test('createExporter() lists the built-in formats when the name is unknown', async () => {
  await expect(createExporter({ format: 'json', config: {} }, { allowed: [] })).rejects.toThrow(
    /^Unknown format "json"\. Use jsonl, parquet, .*sharegpt, or the path of a module such as \.\/my-format\.ts\.$/,
  )
})
