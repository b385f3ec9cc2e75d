import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { ArtifactPolicy, Artifacts } from './artifacts.ts'

let scratch: string
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-artifacts-'))
})
afterEach(() => rm(scratch, { recursive: true, force: true }))

const KILOBYTE = 1 / 1024

function artifactsWith(policy: Record<string, unknown> = {}): { artifacts: Artifacts; dir: string } {
  const dir = join(scratch, 'artifacts')
  return { artifacts: new Artifacts(dir, ArtifactPolicy.parse(policy)), dir }
}

test('write() creates a file that only its owner can read', async () => {
  const { artifacts, dir } = artifactsWith()
  await artifacts.write('agent/stdout.log', 'said\n')
  expect(await readFile(join(dir, 'agent/stdout.log'), 'utf8')).toBe('said\n')
  expect((await stat(join(dir, 'agent/stdout.log'))).mode & 0o777).toBe(0o600)
  expect((await stat(join(dir, 'agent'))).mode & 0o777).toBe(0o700)
  expect(artifacts.kept).toEqual([{ path: 'agent/stdout.log', bytes: 5, isCut: false }])
})

test('copy() cuts a file at the size limit, marks it as cut, and reads its source to the end', async () => {
  const { artifacts, dir } = artifactsWith({ fileMb: KILOBYTE })
  let read = 0
  const endless = function* (): Generator<Buffer> {
    for (; read < 8; read++) yield Buffer.alloc(300, 'a')
  }
  await artifacts.copy('agent/stdout.log', endless())
  expect(read).toBe(8)
  expect((await stat(join(dir, 'agent/stdout.log'))).size).toBe(1024)
  expect(artifacts.kept).toEqual([{ path: 'agent/stdout.log', bytes: 1024, isCut: true }])
})

test('copy() enforces the total size limit, and lists files that were cut to nothing', async () => {
  const { artifacts, dir } = artifactsWith({ fileMb: KILOBYTE, totalMb: 1.5 * KILOBYTE })
  for (const name of ['a', 'b', 'c']) await artifacts.write(name, Buffer.alloc(1024))
  expect(artifacts.kept).toEqual([
    { path: 'a', bytes: 1024, isCut: false },
    { path: 'b', bytes: 512, isCut: true },
    { path: 'c', bytes: 0, isCut: true },
  ])
  expect(existsSync(join(dir, 'c'))).toBe(false)
})

test('copy() marks a file whose source was already cut', async () => {
  const { artifacts } = artifactsWith()
  await artifacts.copy('agent/stdout.log', [Buffer.from('abc')], { totalBytes: 10 })
  expect(artifacts.kept).toEqual([{ path: 'agent/stdout.log', bytes: 3, isCut: true }])
})

test('copy() creates no file for an empty source', async () => {
  const { artifacts, dir } = artifactsWith()
  await artifacts.copy('agent/stderr.log', [])
  expect(artifacts.kept).toEqual([])
  expect(existsSync(dir)).toBe(false)
})

test.each([
  '',
  '/etc/passwd',
  '../up',
  'a/../b',
  'a//b',
  '.hidden',
  'a/.b',
  '-flag',
  'a b',
  'a\nb',
  'ü',
  'a/b/c/d/e/f',
])('write() rejects the path %j', async (path) => {
  const { artifacts, dir } = artifactsWith()
  await expect(artifacts.write(path, 'x')).rejects.toThrow('is not a valid artifact path')
  expect(existsSync(dir)).toBe(false)
})

test('write() discards files if the policy keeps none', async () => {
  const { artifacts, dir } = artifactsWith({ keep: 'none' })
  await artifacts.write('a', 'x')
  await artifacts.settle({ hasFailed: true })
  expect([artifacts.areKept, artifacts.kept, existsSync(dir)]).toEqual([false, [], false])
})

test('settle() removes the artifacts of a successful session if only failures are kept', async () => {
  const { artifacts, dir } = artifactsWith({ keep: 'failures' })
  await artifacts.write('a', 'x')
  await artifacts.settle({ hasFailed: false })
  expect([artifacts.kept, existsSync(dir)]).toEqual([[], false])
})

test('settle() keeps the artifacts of a failed session', async () => {
  const { artifacts, dir } = artifactsWith({ keep: 'failures' })
  await artifacts.write('a', 'x')
  await artifacts.settle({ hasFailed: true })
  expect(artifacts.kept).toHaveLength(1)
  expect(existsSync(join(dir, 'a'))).toBe(true)
})

test('copy() closes the file and keeps its content if the source fails', async () => {
  const { artifacts, dir } = artifactsWith()
  const breaks = async function* (): AsyncGenerator<Buffer> {
    yield Buffer.from('until here')
    throw new Error('the sandbox is gone')
  }
  await expect(artifacts.copy('log', breaks())).rejects.toThrow('the sandbox is gone')
  expect(await readFile(join(dir, 'log'), 'utf8')).toBe('until here')
})
