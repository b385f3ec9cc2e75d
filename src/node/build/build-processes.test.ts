import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { systemClock } from '../../lib/async/clock.ts'
import { BuildProcesses, type BuildProcessOptions } from './build-processes.ts'

const program = new URL('../../../test/support/build-test-process.ts', import.meta.url)
const opened: BuildProcesses[] = []
afterEach(() => Promise.all(opened.splice(0).map((one) => one[Symbol.asyncDispose]())))

function open(options: Partial<BuildProcessOptions> = {}): BuildProcesses {
  const builds = new BuildProcesses({ program, settings: {}, clock: systemClock, ...options })
  opened.push(builds)
  return builds
}

test('load() reads a session in a child process, and reuses the process', async () => {
  const builds = open()
  const first = await builds.load('ses_1')
  const second = await builds.load('ses_2')
  expect([first.head.id, second.head.id]).toEqual(['ses_1', 'ses_2'])
  expect(await second.readConversation()).toBe('[{"role":"user","content":"ses_2"}]')
  // The fake session contains the id of its process.
  expect(first.head.createdAt).not.toBe(second.head.createdAt)
  await first[Symbol.asyncDispose]()
  await second[Symbol.asyncDispose]()
  await second[Symbol.asyncDispose]()
  await using third = await builds.load('ses_3')
  expect(third.head.createdAt).toBe(first.head.createdAt)
})

test('load() throws the error of the process, which is reused', async () => {
  const builds = open()
  await expect(builds.load('ses_missing')).rejects.toMatchObject({ code: 'store.unavailable' })
  await using next = await builds.load('ses_1')
  expect(next.head.id).toBe('ses_1')
})

test('a session that exceeds the memory limit fails alone, with many small values or one large value', async () => {
  const builds = open({ heapMb: 64 })
  await using neighbour = await builds.load('ses_1')
  const problem = { code: 'session.too-large', message: expect.stringContaining('64 MB') }
  await expect(builds.load('ses_memory')).rejects.toMatchObject(problem)
  await expect(builds.load('ses_large')).rejects.toMatchObject(problem)
  expect(await neighbour.readConversation()).toContain('ses_1')
})

test('a session that exceeds the time limit fails, and its process ends', async () => {
  const clock = new FakeClock()
  const builds = open({ clock, timeoutMs: 60_000 })
  const slow = builds.load('ses_slow')
  slow.catch(() => {})
  await clock.advance(60_000)
  await expect(slow).rejects.toMatchObject({ code: 'session.too-large', message: expect.stringContaining('60 s') })
})

test('a build process that crashes fails only its session', async () => {
  const builds = open()
  const problem = { code: 'internal.bug', message: expect.stringContaining('on purpose') }
  await expect(builds.load('ses_throws')).rejects.toMatchObject(problem)
  await using next = await builds.load('ses_1')
  expect(next.head.id).toBe('ses_1')
})

test.each([
  ['load', 1, true],
  ['load', 2, false],
  ['build', 1, true],
  ['build', 2, false],
] as const)(
  'a process that is killed from outside in its %s %d times: the session is built %s',
  async (step, deaths, isBuilt) => {
    const dir = await mkdtemp(join(tmpdir(), 'polar-builds-'))
    const file = join(dir, 'deaths')
    await writeFile(file, '')
    try {
      const builds = open({ settings: { deaths, file } })
      const build = async () => {
        await using session = await builds.load(`ses_killed_at_${step}`)
        return await session.build({ builder: { strategy: 'any', config: {} }, training: null, toolPrefixes: [] })
      }
      if (isBuilt) expect(await build()).toEqual({ answers: 1 })
      else await expect(build()).rejects.toMatchObject({ code: 'session.too-large' })
      expect(await readFile(file, 'utf8')).toHaveLength(deaths)
      await using next = await builds.load('ses_1')
      expect(next.head.id).toBe('ses_1')
    } finally {
      await rm(dir, { recursive: true })
    }
  },
)
