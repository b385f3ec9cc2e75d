import { mkdtemp, readFile, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { TAR_END, tarHeader, tarPadding } from '../../../../lib/archive/tar-writer.ts'
import { downloadFrom, type StartHelper } from './transfers.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-transfer-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

const LIMITS = { maxBytes: 1000, maxFiles: 10 }
const OWNER = { uid: 0, gid: 0, modifiedAt: 0 }

/** A sandbox whose tar sends one file of three bytes and exits with this code and message. */
function tarThatSays(exitCode: number, stderr: string): StartHelper {
  const header = tarHeader({ name: 'file', kind: 'file', mode: 0o6755, size: 3, ...OWNER })
  return () => ({
    stdin: new PassThrough(),
    stdout: Readable.from([header, Buffer.from('a\0\0'), tarPadding(3), TAR_END]),
    ended: Promise.resolve({ exitCode, stderr }),
    kill: () => {},
  })
}

const download = (start: StartHelper) =>
  downloadFrom(start, '/workspace/file', join(dir, 'copy'), LIMITS, AbortSignal.timeout(5000))

test('downloadFrom() accepts an archive if a file changed, shrank or vanished while tar read it', async () => {
  const warnings = [
    'tar: file: File shrank by 2 bytes; padding with zeros',
    'tar: file: file changed as we read it\ntar: other: File removed before we read it',
  ]
  for (const warning of warnings) {
    await download(tarThatSays(1, `${warning}\n`))
    expect(String(await readFile(join(dir, 'copy')))).toBe('a\0\0')
    expect((await stat(join(dir, 'copy'))).mode & 0o7777).toBe(0o755)
    await rm(join(dir, 'copy'))
  }
})

test('downloadFrom() rejects an archive of unreadable files and leaves no files', async () => {
  for (const [exitCode, stderr] of [
    [2, 'tar: file: Cannot open: Permission denied'],
    [1, 'tar: file: File shrank by 2 bytes; padding with zeros\ntar: something else'],
  ] as const) {
    await expect(download(tarThatSays(exitCode, stderr))).rejects.toMatchObject({ code: 'runtime.copy-failed' })
    expect(await readdir(dir)).toEqual([])
  }
})
