import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { acquireLockFile, identifyProcess, type LockFile, type LockOutcome, type ProcessIdentity } from './lock-file.ts'

let dir: string
let path: string
let self: ProcessIdentity

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-lock-'))
  path = join(dir, 'lock')
  self = await identifyProcess()
})

afterEach(() => rm(dir, { recursive: true }))

test('acquireLockFile() has one holder at a time', async () => {
  const lock = expectLock(await acquireLockFile(path, self))
  expect(await acquireLockFile(path, self)).toMatchObject({ heldBy: { pid: process.pid, host: hostname() } })
  await lock.release()
  await lock.release()
  const next = expectLock(await acquireLockFile(path, self))
  await lock.release()
  expect(await readdir(dir)).toEqual(['lock'])
  await next.release()
  expect(await readdir(dir)).toEqual([])
})

test('one of many concurrent callers acquires the lock, also from a dead holder', async () => {
  for (const stale of [false, true]) {
    for (let round = 0; round < 20; round += 1) {
      if (stale) await writeFile(path, JSON.stringify({ ...self, pid: 2 ** 22 + 1, token: 'dead' }))
      const outcomes = await Promise.all(Array.from({ length: 8 }, () => acquireLockFile(path, self)))
      const locks = outcomes.flatMap((outcome) => ('lock' in outcome ? [outcome.lock] : []))
      expect(locks).toHaveLength(1)
      expect(await readdir(dir)).toEqual(['lock'])
      await locks[0]?.release()
    }
  }
})

test('the lock of a killed process is replaced', async () => {
  const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'])
  await once(child, 'spawn')
  const started = (await readFile(`/proc/${child.pid}/stat`, 'utf8').catch(() => '')).split(') ').at(-1)?.split(' ')[19]
  const holder = { ...self, pid: child.pid, started: started ?? '', token: 'child' }
  await writeFile(path, JSON.stringify(holder))
  expect(await acquireLockFile(path, self)).toMatchObject({ heldBy: { pid: child.pid } })
  child.kill('SIGKILL')
  await once(child, 'exit')
  await expectLock(await acquireLockFile(path, self)).release()
})

test('the lock of a process with a reused pid, or from before a reboot, is replaced', async (context) => {
  if (self.started === '') context.skip('this system does not tell when a process started')
  for (const changed of [{ started: '1' }, { boot: 'another' }]) {
    await writeFile(path, JSON.stringify({ ...self, ...changed, token: 'old' }))
    await expectLock(await acquireLockFile(path, self)).release()
  }
})

test('a holder whose state is unknown keeps the lock', async () => {
  for (const content of [JSON.stringify({ ...self, host: 'elsewhere', pid: 1, token: 't' }), '', '{}', 'null?']) {
    await writeFile(path, content)
    expect(await acquireLockFile(path, self)).toHaveProperty('heldBy')
    expect(await readFile(path, 'utf8')).toBe(content)
  }
})

test('a leftover takeover file keeps the lock', async () => {
  const dead = JSON.stringify({ ...self, pid: 2 ** 22 + 1, token: 'dead' })
  await writeFile(path, dead)
  await writeFile(`${path}.takeover`, dead)
  expect(await acquireLockFile(path, self)).toMatchObject({ heldBy: { pid: 2 ** 22 + 1 } })
})

function expectLock(outcome: LockOutcome): LockFile {
  if (!('lock' in outcome)) throw new Error(`The lock is held by ${JSON.stringify(outcome.heldBy)}`)
  return outcome.lock
}
