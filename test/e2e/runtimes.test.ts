import { execFileSync } from 'node:child_process'
import { cpSync, lstatSync, mkdirSync, realpathSync, statSync } from 'node:fs'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import {
  processesWith,
  runScript,
  toOrphanScript,
  toProbeSpec,
} from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import { runtimeConfig } from '../support/bubblewrap.ts'

const who = process.getuid?.() === 0 ? 'as root' : 'as an ordinary user'

function createRuntime(kind: 'local' | 'bubblewrap', dir: string) {
  return runtimes.create(runtimes.config.parse(runtimeConfig(kind)), { dir, now: Date.now })
}

for (const kind of ['local', 'bubblewrap'] as const) {
  const network = kind === 'local' ? 'open' : 'none'
  describeRuntime(`${kind} ${who}`, (dir) => createRuntime(kind, dir), {
    orphanScript: toOrphanScript(runtimeConfig(kind), { network: { kind: network } }),
  })
}

/** Fills `root` with a shell and the programs that a sandbox needs, without other files of the host. */
function makeImage(root: string): void {
  const programs = [
    'sh',
    'cat',
    'env',
    'sleep',
    'tar',
    'mkdir',
    'rm',
    'mv',
    'chmod',
    'head',
    'dirname',
    'basename',
    'mktemp',
    'id',
    'ls',
  ]
  const files = new Set<string>()
  for (const program of programs) {
    const path = execFileSync('which', [program], { encoding: 'utf8' }).trim()
    files.add(path)
    for (const [library] of execFileSync('ldd', [realpathSync(path)], { encoding: 'utf8' }).matchAll(/\/[^\s()]+/g))
      files.add(library)
  }
  for (const file of files) {
    const target = join(root, file)
    mkdirSync(dirname(target), { recursive: true })
    cpSync(realpathSync(file), target)
    expect(lstatSync(target).isFile()).toBe(true)
  }
  mkdirSync(join(root, 'bin'), { recursive: true })
  cpSync(realpathSync('/bin/sh'), join(root, 'bin', 'sh'))
}

test(`bubblewrap ${who} starts from an image and does not change its files`, async (context) => {
  const dir = await mkdtemp(join(tmpdir(), 'polar-image-'))
  await using runtime = createRuntime('bubblewrap', join(dir, 'data'))
  const checked = await runtime.check(AbortSignal.timeout(30_000))
  if (!checked.isUsable) return context.skip(checked.reason)
  const image = join(dir, 'image')
  makeImage(image)
  mkdirSync(join(image, 'testbed'), { recursive: true })
  await writeFile(join(image, 'testbed', 'code'), 'original')
  await using sandbox = await runtime.start(
    {
      id: 'image',
      image,
      workdir: '/testbed',
      env: {},
      limits: {},
      network: { kind: 'none' },
      mounts: [],
      labels: {},
      leaseUntil: 0,
    },
    AbortSignal.timeout(30_000),
  )
  const script = 'ls /; cat code; echo changed > code; echo new > file; cat code; ls /usr/share /opt; exit 3'
  const execution = await sandbox.exec({ command: ['sh', '-c', script], leftovers: 'end', timeoutMs: 10_000 })
  expect(await execution.result).toMatchObject({ exitCode: 3 })
  const chunks: Buffer[] = []
  for await (const chunk of execution.output('stdout')) chunks.push(chunk)
  const lines = Buffer.concat(chunks).toString().split('\n')
  expect(lines).not.toContain('root')
  expect(lines.join('\n')).toContain('originalchanged')
  await sandbox.download('/testbed', join(dir, 'out'), { maxBytes: 1000, maxFiles: 10 }, AbortSignal.timeout(10_000))
  expect((await readdir(join(dir, 'out'))).sort()).toEqual(['code', 'file'])
  expect(await readdir(join(image, 'testbed'))).toEqual(['code'])
  await sandbox.stop()
  await rm(dir, { recursive: true, force: true })
})

test(`bubblewrap ${who}: each sandbox of a snapshot has its own user, which owns the files of the snapshot`, async (context) => {
  if (process.getuid?.() !== 0) return context.skip('an ordinary user has one user number')
  const dir = await mkdtemp(join(tmpdir(), 'polar-users-'))
  await using runtime = createRuntime('bubblewrap', join(dir, 'data'))
  const checked = await runtime.check(AbortSignal.timeout(30_000))
  if (!checked.isUsable) return context.skip(checked.reason)
  const start = (more = {}) => runtime.start(toProbeSpec('users', more), AbortSignal.timeout(30_000))
  await using first = await start()
  await runScript(first, 'mkdir -m 700 own && echo one > own/file')
  await first.snapshot('users')
  const users = new Set<number>()
  for (const token of ['users-a', 'users-b']) {
    await using sandbox = await start({ snapshot: 'users' })
    const word = `${token}-${process.pid}`
    const running = await sandbox.exec({ command: ['bash', '-c', 'echo up; sleep 30; :', word], leftovers: 'end' })
    await running.output('stdout')[Symbol.asyncIterator]().next()
    for (const pid of processesWith(word)) users.add(statSync(`/proc/${pid}`).uid)
    const change = 'echo two >> own/file && cat own/file && stat -c %u own/file && rm -r own && ls'
    expect(await runScript(sandbox, change)).toMatchObject({ stdout: 'one\ntwo\n1000\n', stderr: '' })
    await running.kill()
  }
  expect(users.size).toBe(2)
  expect(Math.min(...users)).toBeGreaterThan(1_900_000)
  await first.stop()
  await rm(dir, { recursive: true, force: true })
})
