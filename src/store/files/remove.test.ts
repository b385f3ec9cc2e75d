import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { removeKept } from './remove.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-remove-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

async function write(...paths: string[]): Promise<void> {
  for (const path of paths) {
    await mkdir(join(dir, dirname(path)), { recursive: true })
    await writeFile(join(dir, path), 'x')
  }
}
const namesIn = async (): Promise<string[]> => (await readdir(dir, { recursive: true })).toSorted()

test('removes files and the folders that become empty, but no shared folders', async () => {
  await write('results/0a/s.1.json.zst', 'artifacts/0a/s.1/a/b/c', 'artifacts/0a/s.1/a/d', 'artifacts/0a/t.1/a')
  await removeKept(dir, ['results/0a/s.1.json.zst', 'artifacts/0a/s.1/a/b/c'])
  const left = ['artifacts', 'artifacts/0a', 'artifacts/0a/t.1', 'artifacts/0a/t.1/a', 'results', 'results/0a']
  expect(await namesIn()).toEqual(
    [...left, 'artifacts/0a/s.1', 'artifacts/0a/s.1/a', 'artifacts/0a/s.1/a/d'].toSorted(),
  )
  await removeKept(dir, ['artifacts/0a/s.1/a/d'])
  expect(await namesIn()).toEqual(left)
})

test('ignores a missing file, and removes the others if one cannot be removed', async () => {
  await write('results/0a/folder/x', 'results/0a/s.1.json.zst')
  const removal = removeKept(dir, ['results/0a/none', 'results/0a/folder', 'results/0a/s.1.json.zst'])
  await expect(removal).rejects.toThrow(/EISDIR|EPERM/)
  expect(await namesIn()).toEqual(['results', 'results/0a', 'results/0a/folder', 'results/0a/folder/x'])
})

test('removes nothing outside of stored files', async () => {
  await write('uploads/0a/x', 'results/0a/x')
  for (const path of ['uploads/0a/x', 'results/0a/../../uploads/0a/x', '/etc/passwd', '../x', 'results', '']) {
    await expect(removeKept(dir, ['results/0a/x', path])).rejects.toMatchObject({ code: 'request.malformed' })
  }
  expect(await namesIn()).toEqual(['results', 'results/0a', 'results/0a/x', 'uploads', 'uploads/0a', 'uploads/0a/x'])
})
