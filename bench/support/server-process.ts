/** A rollout server with a new embedded database, in a separate process. */
import pino from 'pino'
import { startTestServer } from '../../test/support/rollout-server.ts'
import { serveParent } from './child.ts'
import { SelfProfiler, type ProfileAsk } from './profiler.ts'

const test = await startTestServer({ logger: pino({ level: 'silent' }), checkAnswers: false })
const profiler = new SelfProfiler()
serveParent(
  { url: test.server.url },
  { answer: (ask) => profiler.answer(ask as ProfileAsk), stop: async () => test[Symbol.asyncDispose]() },
)
