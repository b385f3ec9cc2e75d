import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Sandbox } from '../runtimes/runtime.ts'
import { toWorkspace } from './sandbox-workspace.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-workspace-'))
  await writeFile(join(dir, 'secret'), 'a file of this machine')
})
afterEach(() => rm(dir, { recursive: true, force: true }))

const LIMITS = { maxBytes: 1000, maxFiles: 10 }

/** A sandbox whose downloads are created by `make`. */
function workspaceOf(make: (target: string) => Promise<void>) {
  const sandbox: Pick<Sandbox, 'workdir' | 'download'> = {
    workdir: '/workspace',
    download: async (_, target) => make(target),
  }
  return toWorkspace(sandbox as Sandbox, new AbortController().signal)
}

test('download() rejects a link in place of a file, so that reading the copy reads no file of this machine', async () => {
  const workspace = workspaceOf((target) => symlink(join(dir, 'secret'), target))
  const target = join(dir, 'answer.txt')
  await expect(workspace.download('answer.txt', target, LIMITS)).rejects.toMatchObject({
    code: 'workspace.unsafe-file',
  })
  await expect(readFile(target)).rejects.toThrow('ENOENT')
  expect(await readFile(join(dir, 'secret'), 'utf8')).toBe('a file of this machine')
})

test('download() returns a tree without links and reports the omitted links; it keeps links with links: keep', async () => {
  const workspace = workspaceOf(async (target) => {
    await mkdir(target)
    await writeFile(join(target, 'a'), 'one')
    await symlink('/workspace/out/a', join(target, 'b'))
    await symlink(join(dir, 'secret'), join(target, 'c'))
  })
  const leftOut = await workspace.download('out', join(dir, 'copy'), LIMITS)
  expect(leftOut).toEqual([{ path: 'c', why: 'the link points outside of the copied folder' }])
  expect(await readdir(join(dir, 'copy'))).toEqual(['a', 'b'])
  expect(await readFile(join(dir, 'copy', 'b'), 'utf8')).toBe('one')
  expect(await workspace.download('out', join(dir, 'kept'), { ...LIMITS, links: 'keep' })).toEqual([])
  expect(await readdir(join(dir, 'kept'))).toEqual(['a', 'b', 'c'])
})
