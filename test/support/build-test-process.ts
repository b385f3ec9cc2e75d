/** A build process that handles each session as its id says. For the tests of `BuildProcesses`. */
import { appendFileSync, readFileSync } from 'node:fs'
import { serveBuilds } from '../../src/node/build/serve-builds.ts'
import type { LoadedSession, SessionBuilds } from '../../src/node/build/session-build.ts'
import { RolloutError } from '../../src/model/failure.ts'

const kept: unknown[] = []

const builds: SessionBuilds = {
  async load(id) {
    if (id === 'ses_missing') throw new RolloutError('store.unavailable', 'There is no such session.')
    if (id === 'ses_memory') for (;;) kept.push(Array.from({ length: 1000 }, (_, i) => `${i} ${kept.length}`))
    if (id === 'ses_large') kept.push(JSON.parse(`[${'[],'.repeat(50_000_000)}1]`))
    if (id === 'ses_killed_at_load') await dieTimes()
    if (id === 'ses_slow') await new Promise(() => {})
    if (id === 'ses_throws')
      setImmediate(() => {
        throw new Error('on purpose')
      })
    if (id === 'ses_throws') await new Promise(() => {})
    const session = {
      head: { id, createdAt: process.pid, origin: {}, complete: true, incompleteReasons: [], turnCount: 1 },
      build: async () => {
        if (id === 'ses_killed_at_build') await dieTimes()
        return { answers: 1 }
      },
      readConversation: async () => JSON.stringify([{ role: 'user', content: id }]),
    }
    return session as unknown as LoadedSession
  },
  async [Symbol.asyncDispose]() {},
}

/** Kills this process with SIGKILL until `deaths` processes were killed. */
async function dieTimes(): Promise<void> {
  const { deaths, file } = JSON.parse(process.argv[2]!) as { deaths: number; file: string }
  if (readFileSync(file, 'utf8').length >= deaths) return
  appendFileSync(file, 'x')
  process.kill(process.pid, 'SIGKILL')
  await new Promise(() => {})
}

serveBuilds(process, Promise.resolve(builds))
