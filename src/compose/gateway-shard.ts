/** Program of a gateway process. The parent process sends its settings. */
import { Gateway, type GatewayOptions } from '../gateway/gateway.ts'
import type { QuirkRule } from '../gateway/quirks/rule.ts'
import type { ContinuationMode } from '../gateway/sessions/sessions.ts'
import { serveShard } from '../gateway/process/shard-process.ts'
import { createUpstream, type UpstreamConfig } from '../gateway/upstreams/index.ts'
import { loadUpstream } from '../gateway/upstreams/load-upstream.ts'
import { randomIds } from '../lib/random-ids.ts'
import { createCallLogStore } from '../store/call-log/store.ts'
import { createLogger } from './create-logger.ts'
import type { GatewayLimits } from './open-gateway.ts'
import { surviveErrors } from './survive-errors.ts'

export interface ShardSettings {
  host: string
  dir: string
  durability: 'process' | 'disk'
  /** See `CallLogOptions.lockWaitMs`. */
  lockWaitMs: number
  /** Absent: the gateway's default; the same for `sessionMemoryMb`. */
  continuation?: ContinuationMode
  sessionMemoryMb?: number
  quirks: readonly QuirkRule[]
  upstream: [UpstreamConfig, ...UpstreamConfig[]]
  /** Absolute path of the module of the upstream; absent: a built-in kind. */
  upstreamModule?: string
  limits: GatewayLimits
  /** Recorded in the origin of every session. */
  engine: { kind: string; url: string; model: string }
  logLevel: string
}

// A terminal sends an interrupt to every process of the group; the parent ends this process.
process.on('SIGINT', () => {}).on('SIGTERM', () => {})

serveShard<ShardSettings>(async ({ port, settings }, report) => {
  await using stack = new AsyncDisposableStack()
  const logger = createLogger(settings.logLevel)
  const { upstreamModule: module } = settings
  const plug = module === undefined ? undefined : await loadUpstream(module)
  const upstream = stack.use(createUpstream(settings.upstream, { now: () => performance.now(), plug }))
  const { dir, durability, lockWaitMs } = settings
  const store = stack.use(createCallLogStore({ dir, durability, lockWaitMs, now: Date.now }))
  const gateway = stack.use(
    await Gateway.start({
      upstream,
      store,
      port,
      host: settings.host,
      continuation: settings.continuation,
      sessionMemoryMb: settings.sessionMemoryMb,
      quirks: settings.quirks,
      budget: toBudget(settings.limits),
      sessionLogMb: settings.limits.sessionLogMb,
      sessionCalls: settings.limits.sessionCalls,
      origin: { engine: settings.engine },
      ids: randomIds(Date.now),
      now: Date.now,
      onTurnEnd: report,
      onBusy: report,
      logger,
    }),
  )
  // After a failed allocation the process exits, and its supervisor starts a new one.
  surviveErrors(logger, { onBroken: () => process.exit(1) })
  const owned = stack.move()
  return { gateway, port: Number(new URL(gateway.url).port), [Symbol.asyncDispose]: () => owned.disposeAsync() }
})

function toBudget({ sessionBodyMb, totalBodyMb }: GatewayLimits): NonNullable<GatewayOptions['budget']> {
  return {
    ...(sessionBodyMb === undefined ? {} : { sessionBytes: sessionBodyMb * 1024 ** 2 }),
    ...(totalBodyMb === undefined ? {} : { totalBytes: totalBodyMb * 1024 ** 2 }),
  }
}
