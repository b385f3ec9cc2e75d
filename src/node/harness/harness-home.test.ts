import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createHarnessHome } from './harness-home.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-home-test-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

async function modeOf(path: string): Promise<string> {
  return ((await stat(path)).mode & 0o777).toString(8)
}

test('createHarnessHome() makes a private folder that disposal removes with its contents', async () => {
  let path: string
  {
    await using home = await createHarnessHome(scratch)
    path = home.path
    expect(dirname(path)).toBe(scratch)
    expect(await modeOf(path)).toBe('700')
    expect(await modeOf(home.tmpdir)).toBe('700')
    await writeFile(join(home.tmpdir, 'left'), 'over')
  }
  await expect(stat(path)).rejects.toMatchObject({ code: 'ENOENT' })
})

test('createHarnessHome() makes a new folder on each call', async () => {
  await using one = await createHarnessHome(scratch)
  await using other = await createHarnessHome(scratch)
  expect(one.path).not.toBe(other.path)
})
