/** The program of one gateway process: everything it needs comes from the process that forked it. */
import pino from 'pino'
import { Gateway } from '../gateway/gateway.ts'
import { serveShard } from '../gateway/shards.ts'
import { createVllm } from '../gateway/upstreams/vllm.ts'
import { randomIds } from '../lib/random-ids.ts'
import { createCallLogStore } from '../store/call-log/store.ts'

export interface ShardSettings {
  host: string
  dir: string
  durability: 'process' | 'disk'
  upstream: { url: string; model: string; apiKey?: string }
  logLevel: string
}

// An interrupt from the terminal reaches every process of the group; ours end when the parent lets go of them.
process.on('SIGINT', () => {}).on('SIGTERM', () => {})

serveShard<ShardSettings>(async ({ port, settings }) => {
  await using stack = new AsyncDisposableStack()
  const { url, model, apiKey } = settings.upstream
  const upstream = stack.use(createVllm({ baseUrl: url, model, apiKey }))
  const store = stack.use(createCallLogStore({ dir: settings.dir, durability: settings.durability, now: Date.now }))
  const gateway = stack.use(
    await Gateway.start({
      upstream,
      store,
      port,
      host: settings.host,
      ids: randomIds(Date.now),
      now: Date.now,
      logger: pino({ level: settings.logLevel }, pino.destination(2)),
    }),
  )
  const owned = stack.move()
  return { gateway, port: Number(new URL(gateway.url).port), [Symbol.asyncDispose]: () => owned.disposeAsync() }
})
