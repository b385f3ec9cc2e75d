/** A rollout server with a new embedded database, in a process of its own. */
import { writeFile } from 'node:fs/promises'
import { Session } from 'node:inspector/promises'
import pino from 'pino'
import { startTestServer } from '../../test/support/rollout-server.ts'
import { serveParent } from './child.ts'

export type ServerAsk = { kind: 'profile-start' } | { kind: 'profile-stop'; file: string }

const test = await startTestServer({ logger: pino({ level: 'silent' }), checkAnswers: false })
const inspector = new Session()
inspector.connect()
serveParent(
  { url: test.server.url },
  async (ask) => answer(ask as ServerAsk),
  async () => test[Symbol.asyncDispose](),
)

async function answer(ask: ServerAsk): Promise<void> {
  switch (ask.kind) {
    case 'profile-start':
      await inspector.post('Profiler.enable')
      await inspector.post('Profiler.setSamplingInterval', { interval: 200 })
      await inspector.post('Profiler.start')
      return
    case 'profile-stop': {
      const { profile } = await inspector.post('Profiler.stop')
      await writeFile(ask.file, JSON.stringify(profile))
    }
  }
}
