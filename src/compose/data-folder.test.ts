import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { controlTokenFile, obtainControlToken } from './data-folder.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-data-folder-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

test('concurrent calls of obtainControlToken() create one token that only its user can read', async () => {
  const tokens = await Promise.all(Array.from({ length: 8 }, () => obtainControlToken(dir)))
  expect(new Set(tokens).size).toBe(1)
  expect(tokens[0]).toMatch(/^polar_control_[\w-]{32}$/)
  expect((await readFile(controlTokenFile(dir), 'utf8')).trim()).toBe(tokens[0])
  expect((await stat(controlTokenFile(dir))).mode & 0o777).toBe(0o600)
  expect(await obtainControlToken(dir)).toBe(tokens[0])
})

test('obtainControlToken() rejects a token that other users can read, and an invalid token', async () => {
  const file = controlTokenFile(dir)
  await obtainControlToken(dir)
  await chmod(file, 0o640)
  await expect(obtainControlToken(dir)).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringContaining('chmod 600'),
  })
  await chmod(file, 0o600)
  await writeFile(file, 'short\n')
  await expect(obtainControlToken(dir)).rejects.toMatchObject({ code: 'config.invalid' })
})
