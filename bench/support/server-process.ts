/** A rollout server with a new embedded database, in a separate process. */
import pino from 'pino'
import { startTestServer } from '../../test/support/rollout-server.ts'
import { serveParent } from './child.ts'
import { SelfProfiler } from './profiler.ts'

export type ServerAsk = { kind: 'profile-start' } | { kind: 'profile-stop'; file: string }

const test = await startTestServer({ logger: pino({ level: 'silent' }), checkAnswers: false })
const profiler = new SelfProfiler()
serveParent(
  { url: test.server.url },
  async (ask) => answer(ask as ServerAsk),
  async () => test[Symbol.asyncDispose](),
)

async function answer(ask: ServerAsk): Promise<void> {
  switch (ask.kind) {
    case 'profile-start':
      return profiler.start()
    case 'profile-stop':
      return profiler.stop(ask.file)
  }
}
