/** The gateway under test: real upstream adapter, real call log in a folder, many sessions. */
import pino from 'pino'
import { Gateway, type SessionAccess } from '../../src/gateway/gateway.ts'
import { createVllm } from '../../src/gateway/upstreams/vllm.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import { createCallLogStore } from '../../src/store/call-log/store.ts'
import { serveParent } from './child.ts'
import { createLagMeter } from './lag.ts'
import { readHeldMemory } from './memory.ts'
import { SelfProfiler, type ProfileAsk } from './profiler.ts'

export type GatewayAsk =
  | { kind: 'lag' }
  | ProfileAsk
  | { kind: 'open'; count: number }
  | { kind: 'close'; sessions: readonly string[] }
  | { kind: 'memory' }

export interface GatewayReady {
  sessions: SessionAccess[]
}

const [baseUrl = '', dir = '', sessionCount = '1'] = process.argv.slice(2)
const upstream = createVllm({ baseUrl, model: 'tiny' })
const store = createCallLogStore({ dir, now: Date.now })
const gateway = await Gateway.start({
  upstream,
  store,
  ids: randomIds(Date.now),
  now: Date.now,
  logger: pino({ level: 'warn' }, pino.destination(2)),
})
const sessions = await openSessions(Number(sessionCount))

const lag = createLagMeter()
const profiler = new SelfProfiler()

serveParent({ sessions } satisfies GatewayReady, { answer: (ask) => answer(ask as GatewayAsk), stop })

async function answer(ask: GatewayAsk): Promise<unknown> {
  switch (ask.kind) {
    case 'lag':
      return lag.take()
    case 'profile-start':
    case 'profile-stop':
      return profiler.answer(ask)
    case 'open':
      return openSessions(ask.count)
    case 'close':
      for (const id of ask.sessions) await gateway.closeSession(id)
      return undefined
    case 'memory':
      return readHeldMemory()
  }
}

async function openSessions(count: number): Promise<SessionAccess[]> {
  const opened: SessionAccess[] = []
  for (let i = 0; i < count; i++) opened.push(await gateway.openSession({ origin: { bench: 'gateway' } }))
  return opened
}

async function stop(): Promise<void> {
  await gateway[Symbol.asyncDispose]()
  await store[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
}
