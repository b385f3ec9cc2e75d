/** A build process whose sessions do what their id says. For the tests of `BuildProcesses`. */
import { serveBuilds } from '../../src/node/build/serve-builds.ts'
import type { LoadedSession, SessionBuilds } from '../../src/node/build/session-build.ts'
import { RolloutError } from '../../src/model/failure.ts'

const kept: unknown[] = []

const builds: SessionBuilds = {
  async load(id) {
    if (id === 'ses_missing') throw new RolloutError('store.unavailable', 'There is no such session.')
    if (id === 'ses_memory') for (;;) kept.push(Array.from({ length: 1000 }, (_, i) => `${i} ${kept.length}`))
    if (id === 'ses_large') kept.push(JSON.parse(`[${'[],'.repeat(50_000_000)}1]`))
    if (id === 'ses_slow') await new Promise(() => {})
    if (id === 'ses_throws')
      setImmediate(() => {
        throw new Error('on purpose')
      })
    if (id === 'ses_throws') await new Promise(() => {})
    const session = {
      head: { id, createdAt: process.pid, origin: {}, complete: true, incompleteReasons: [], turnCount: 1 },
      readConversation: async () => JSON.stringify([{ role: 'user', content: id }]),
    }
    return session as unknown as LoadedSession
  },
  async [Symbol.asyncDispose]() {},
}

serveBuilds(process, Promise.resolve(builds))
