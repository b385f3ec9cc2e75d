import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished, test } from 'vitest'
import { Spawner, type SpawnedProcess } from './spawner.ts'

const env = { PATH: '/usr/bin:/bin' }

function createSpawner(): Spawner {
  const spawner = new Spawner()
  onTestFinished(() => spawner[Symbol.asyncDispose]())
  return spawner
}

function untilExit(child: SpawnedProcess): Promise<[number | null, NodeJS.Signals | null]> {
  return new Promise((resolve) => child.once('exit', (code, signal) => resolve([code, signal])))
}

async function parentOf(pid: number): Promise<number | 'gone'> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')
  const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  // A machine may have no process that reaps orphans.
  return parent === undefined || state === 'Z' ? 'gone' : Number(parent)
}

test('output and exit of a process are reported in order', async () => {
  const child = createSpawner().spawn('sh', ['-c', 'echo "$WORD"; echo no >&2; exit 3'], {
    env: { ...env, WORD: 'yes' },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const [end, stdout, stderr] = await Promise.all([untilExit(child), text(child.stdout!), text(child.stderr!)])
  expect([end, stdout, stderr]).toEqual([[3, null], 'yes\n', 'no\n'])
  expect(child.exitCode).toBe(3)
  expect(child.kill('SIGKILL')).toBe(false)
})

test('kill() delivers a signal and reports it as the exit signal', async () => {
  const child = createSpawner().spawn('sleep', ['60'], { env, stdio: ['ignore', 'ignore', 'ignore'] })
  const end = untilExit(child)
  child.kill('SIGKILL')
  expect(await end).toEqual([null, 'SIGKILL'])
})

test('a program that cannot be started exits with 127', async () => {
  const child = createSpawner().spawn('/no/such/program', [], { env, stdio: ['ignore', 'ignore', 'ignore'] })
  expect(await untilExit(child)).toEqual([127, null])
})

test('the helper process starts children, and children with a parent-death signal end with it', async () => {
  const spawner = new Spawner()
  const child = spawner.spawn('setpriv', ['--pdeathsig', 'KILL', 'sleep', '60'], {
    env,
    stdio: ['ignore', 'ignore', 'ignore'],
  })
  await new Promise((resolve) => child.once('spawn', resolve))
  expect(await parentOf(child.pid!)).not.toBe(process.pid)
  // Until setpriv has set the parent-death signal.
  await sleep(200)
  const end = untilExit(child)
  await spawner[Symbol.asyncDispose]()
  expect(await end).toEqual([127, null])
  await expect.poll(() => parentOf(child.pid!)).toBe('gone')
})
