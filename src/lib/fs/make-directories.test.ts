import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { makeDirectories } from './make-directories.ts'

test('makeDirectories() makes all that is missing, with the mode, also when asked at the same time', async () => {
  const scratch = await mkdtemp(join(tmpdir(), 'polar-directories-'))
  try {
    const path = join(scratch, 'a', 'b', 'c')
    await Promise.all([makeDirectories(path, 0o700), makeDirectories(path, 0o700), makeDirectories(path, 0o700)])
    await makeDirectories(path, 0o700)
    for (const made of [path, join(scratch, 'a')]) expect((await stat(made)).mode & 0o777).toBe(0o700)
  } finally {
    await rm(scratch, { recursive: true })
  }
})

test('makeDirectories() gives up where the system does', async () => {
  await expect(makeDirectories('/dev/null/a/b', 0o700)).rejects.toMatchObject({ code: 'ENOTDIR' })
  await expect(makeDirectories('/proc/polar/a', 0o700)).rejects.toMatchObject({ code: 'ENOENT' })
})
