/** A rollout server with a new embedded database, in a process of its own. */
import pino from 'pino'
import { startTestServer } from '../../test/support/rollout-server.ts'
import { serveParent } from './child.ts'

const test = await startTestServer({ logger: pino({ level: 'silent' }), checkAnswers: false })
serveParent(
  { url: test.server.url },
  async () => undefined,
  async () => test[Symbol.asyncDispose](),
)
