import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { systemClock } from '../../lib/async/clock.ts'
import { PastSessions } from './past-sessions.ts'
import { RetentionPolicy } from './policies.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-past-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

/** Creates four sessions of one megabyte each, the newest last. */
async function fill(name: string): Promise<string> {
  const dir = join(scratch, name)
  for (const session of ['a', 'b', 'c', 'd']) {
    const folder = join(dir, session === 'b' ? 'attempt-2' : 'attempt-1', session)
    await mkdir(join(folder, 'artifacts'), { recursive: true })
    await writeFile(join(folder, 'artifacts', 'log'), Buffer.alloc(2 ** 20))
    await sleep(5)
  }
  return dir
}

async function leftOf(dir: string): Promise<string[]> {
  const found = await Promise.all((await readdir(dir)).map((attempt) => readdir(join(dir, attempt))))
  return found.flat().toSorted()
}

async function sweep(dir: string, policy: Partial<RetentionPolicy>, now = Date.now): Promise<string[]> {
  const clock = { ...systemClock, now }
  using past = new PastSessions({ dir, policy: RetentionPolicy.parse(policy), clock, problem: () => {} })
  await past.sweep()
  return await leftOf(dir)
}

test('sweep() keeps at most `sessions` sessions, the newest', async () => {
  expect(await sweep(await fill('count'), { sessions: 2 })).toEqual(['c', 'd'])
})

test('sweep() keeps at most `totalMb` megabytes', async () => {
  expect(await sweep(await fill('bytes'), { totalMb: 3.5 })).toEqual(['b', 'c', 'd'])
})

test('sweep() removes sessions that are older than `hours`', async () => {
  const dir = await fill('age')
  expect(await sweep(dir, { hours: 1 })).toEqual(['a', 'b', 'c', 'd'])
  expect(await sweep(dir, { hours: 1 }, () => Date.now() + 3_700_000)).toEqual([])
})

test('add() removes a session at once if the policy keeps none', async () => {
  const dir = await fill('none')
  const policy = RetentionPolicy.parse({ sessions: 0 })
  using past = new PastSessions({ dir, policy, clock: systemClock, problem: () => {} })
  await past.add(join(dir, 'attempt-1', 'a'))
  expect(await leftOf(dir)).toEqual(['b', 'c', 'd'])
})
