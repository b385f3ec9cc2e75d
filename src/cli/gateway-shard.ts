/** The program of one gateway process: everything it needs comes from the process that forked it. */
import { Gateway } from '../gateway/gateway.ts'
import type { QuirkRule } from '../gateway/quirks/rule.ts'
import type { ContinuationMode } from '../gateway/sessions.ts'
import { serveShard } from '../gateway/shards.ts'
import { createUpstream, type UpstreamConfig } from '../gateway/upstreams/index.ts'
import { randomIds } from '../lib/random-ids.ts'
import { createCallLogStore } from '../store/call-log/store.ts'
import { createLogger } from './create-logger.ts'

export interface ShardSettings {
  host: string
  dir: string
  durability: 'process' | 'disk'
  continuation: ContinuationMode
  sessionMemoryMb: number
  quirks: QuirkRule[]
  upstream: [UpstreamConfig, ...UpstreamConfig[]]
  /** For the origin of every session. */
  engine: { kind: string; url: string; model: string }
  logLevel: string
}

// An interrupt from the terminal reaches every process of the group; ours end when the parent lets go of them.
process.on('SIGINT', () => {}).on('SIGTERM', () => {})

serveShard<ShardSettings>(async ({ port, settings }) => {
  await using stack = new AsyncDisposableStack()
  const upstream = stack.use(createUpstream(settings.upstream, { now: () => performance.now() }))
  const store = stack.use(createCallLogStore({ dir: settings.dir, durability: settings.durability, now: Date.now }))
  const gateway = stack.use(
    await Gateway.start({
      upstream,
      store,
      port,
      host: settings.host,
      continuation: settings.continuation,
      sessionMemoryMb: settings.sessionMemoryMb,
      quirks: settings.quirks,
      origin: { engine: settings.engine },
      ids: randomIds(Date.now),
      now: Date.now,
      logger: createLogger(settings.logLevel),
    }),
  )
  const owned = stack.move()
  return { gateway, port: Number(new URL(gateway.url).port), [Symbol.asyncDispose]: () => owned.disposeAsync() }
})
