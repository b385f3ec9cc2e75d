import { mkdir, mkdtemp, realpath, rm, symlink, unlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { allowModules, lacksFields, loadExport } from './load-module.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-module-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

const expectation = {
  what: 'Thing',
  name: 'thing',
  lacks: (value: unknown) => lacksFields(value, { name: 'string', make: 'function' }),
}

async function moduleOf(name: string, source: string): Promise<string> {
  await writeFile(join(dir, name), source)
  return join(dir, name)
}

function load(path: string, allowed: readonly string[]): ReturnType<typeof loadExport> {
  return loadExport(path, { ...expectation, allowed })
}

test('loads the export of an allowed module, also by a link', async () => {
  const path = await moduleOf('good.mts', "export const thing: object = { name: 'good', make() {} }")
  await symlink(path, join(dir, 'link.mts'))
  expect(await load(path, [path])).toMatchObject({ value: { name: 'good' } })
  expect(await load(join(dir, 'link.mts'), [path])).toMatchObject({ value: { name: 'good' } })
  expect(await load(path, await allowModules([join(dir, 'link.mts')]))).toMatchObject({ value: { name: 'good' } })
})

test('a link that changes after it was allowed loads no other module, nor does a changed link of a folder', async () => {
  const good = await moduleOf('first.mjs', "export const thing = { name: 'first', make() {} }")
  const evil = await moduleOf('second.mjs', 'globalThis.evilRan = true; export const thing = {}')
  const link = join(dir, 'current.mjs')
  await symlink(good, link)
  const allowed = await allowModules([link])
  await unlink(link)
  await symlink(evil, link)
  expect(await load(link, allowed)).toMatchObject({ problem: expect.stringContaining(`a link to ${evil}`) })

  await mkdir(join(dir, 'a'))
  await mkdir(join(dir, 'b'))
  await writeFile(join(dir, 'a', 'm.mjs'), "export const thing = { name: 'a', make() {} }")
  await writeFile(join(dir, 'b', 'm.mjs'), 'globalThis.evilRan = true')
  await symlink(join(dir, 'a'), join(dir, 'folder'))
  const byFolder = await allowModules([join(dir, 'folder', 'm.mjs')])
  await unlink(join(dir, 'folder'))
  await symlink(join(dir, 'b'), join(dir, 'folder'))
  expect(await load(join(dir, 'folder', 'm.mjs'), byFolder)).toHaveProperty('problem')
  expect('evilRan' in globalThis).toBe(false)
})

test.each([
  ['relative', 'thing.mjs', '', 'Thing module thing.mjs must be an absolute path.'],
  ['not there', '/no/such/thing.mjs', '', 'Thing module /no/such/thing.mjs is not there'],
  ['empty', undefined, '', 'must export "thing". It exports nothing.'],
  ['other', undefined, 'export const other = 1', 'must export "thing". It exports other.'],
  ['shape', undefined, "export const thing = { name: '' }", 'lacks name, a string, a function make().'],
  ['null', undefined, 'export const thing = null', 'lacks everything: it is null.'],
  ['throws', undefined, "throw new Error('on purpose')", 'cannot be loaded: on purpose.'],
])('reports the problem of a module that is %s', async (name, path, source, problem) => {
  const where = path ?? (await moduleOf(`${name}.mjs`, source))
  expect(await load(where, [where])).toMatchObject({ problem: expect.stringContaining(problem) })
})
