import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { makeDirectories } from './make-directories.ts'

test('makeDirectories() creates missing folders with the mode, also concurrently', async () => {
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

test('makeDirectories() throws the error of the system', async () => {
  await expect(makeDirectories('/dev/null/a/b', 0o700)).rejects.toMatchObject({ code: 'ENOTDIR' })
  await expect(makeDirectories('/proc/polar/a', 0o700)).rejects.toMatchObject({ code: 'ENOENT' })
})
