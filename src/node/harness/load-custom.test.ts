import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadHarness } from './load-harness.ts'
import { createCustomRuntime, loadRuntime } from '../sandbox/load-runtime.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-custom-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

let count = 0
async function moduleOf(source: string): Promise<string> {
  const path = join(dir, `module-${count++}.mjs`)
  await writeFile(path, source)
  return path
}

const fields = `name: 'mine', title: 'Mine', command: 'mine', hasSubAgents: false, instruction: 'file',
  mcpTransports: [], settings: {}, configure() {}, exitCodes: {}`

test('loadHarness() returns the exported harness', async () => {
  const path = await moduleOf(`export const harness = { ${fields} }`)
  expect(await loadHarness(path, { allowed: [path] })).toMatchObject({ name: 'mine' })
  await expect(loadHarness(path, { allowed: [] })).rejects.toMatchObject({ code: 'config.invalid' })
})

test.each([
  ['has no function', `{ ...all, configure: 1 }`, 'lacks a function configure()'],
  ['is told what to do in another way', `{ ...all, instruction: 'args' }`, 'instruction, "stdin" or "file"'],
  ['has an invalid name', `{ ...all, name: 'My agent' }`, 'a name of lower-case letters and _'],
  ['has the name of a built-in harness', `{ ...all, name: 'codex' }`, '"codex" is the name of a built-in harness'],
  ['has a package with a range', `{ ...all, package: { registry: 'npm', name: 'x', version: '^1' }, program() {}, dialect: 'x' }`, 'an exact version'], // prettier-ignore
])('loadHarness() rejects a harness that %s', async (_case, value, message) => {
  const path = await moduleOf(`const all = { ${fields} }; export const harness = ${value}`)
  await expect(loadHarness(path, { allowed: [path] })).rejects.toThrow(message)
})

const config = `{ shape: { kind: { value: 'mine' } }, safeParse: (data) => ({ success: true, data }) }`

test.each([
  ['is no plug', '{}', 'lacks config, an object, a function create()'],
  ['has no kind', '{ config: {}, create() {} }', 'config, a zod object with kind'],
  ['has a kind of ours', `{ config: ${config.replace('mine', 'local')}, create() {} }`, '"local" is a built-in kind'],
  ['has a kind that is a path', `{ config: ${config.replace('mine', '../x')}, create() {} }`, '"../x" must be'],
])('loadRuntime() rejects a runtime that %s', async (_case, value, message) => {
  const path = await moduleOf(`export const runtime = ${value}`)
  await expect(loadRuntime(path, { allowed: [path] })).rejects.toThrow(message)
})

test('loadRuntime() rejects an incomplete runtime before its first use', async () => {
  const path = await moduleOf(
    `export const runtime = { config: ${config}, create: () => ({ kind: 'mine', start() {} }) }`,
  )
  const plug = await loadRuntime(path, { allowed: [path] })
  const create = () => createCustomRuntime(plug, {}, { dir, now: Date.now })
  expect(create).toThrow('The runtime mine lacks capabilities, an object, a function check()')
})
