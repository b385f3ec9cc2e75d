import { totalmem } from 'node:os'
import type { Logger } from 'pino'
import { Shards } from '../gateway/process/shards.ts'
import { randomIds } from '../lib/random-ids.ts'
import type { ShardSettings } from './gateway-shard.ts'

export interface GatewayChoice {
  /** Number of gateway processes. */
  count: number
  settings: Omit<ShardSettings, 'logLevel' | 'limits'>
  limits?: GatewayLimits
  /** See `ShardOptions.hangMs`. */
  hangMs?: number
  logger: Logger
}

/** Resource limits of a gateway. The gateway has defaults for absent limits. */
export interface GatewayLimits {
  /** Heap limit of each process; absent: `defaultHeapMb`. */
  heapMb?: number
  /** Limit for the request bodies of all calls of one session in flight. */
  sessionBodyMb?: number
  /** The same limit for all sessions; absent: an eighth of the heap. Parsing a body takes several times its size. */
  totalBodyMb?: number
  /** Size limit of the call log of one session. */
  sessionLogMb?: number
  /** Limit of calls of one session in flight. */
  sessionCalls?: number
}

/** Starts gateway processes, which share no event loop with this process. The result restarts and, when disposed, ends them. */
export function openGateway({
  count,
  settings,
  limits = {},
  hangMs,
  logger,
}: GatewayChoice): Promise<Shards<ShardSettings>> {
  const { heapMb = defaultHeapMb(), totalBodyMb = Math.max(MIN_TOTAL_MB, Math.floor(heapMb / 8)) } = limits
  const program = new URL(
    import.meta.url.endsWith('.ts') ? './gateway-shard.ts' : './gateway-shard.js',
    import.meta.url,
  )
  return Shards.start({
    count,
    program,
    settings: { ...settings, limits: { ...limits, totalBodyMb }, logLevel: logger.level },
    host: settings.host,
    heapMb,
    hangMs,
    ids: randomIds(Date.now),
    logger,
  })
}

const MAX_HEAP_MB = 4096
const MIN_HEAP_MB = 512
/** The largest body fits. */
const MIN_TOTAL_MB = 64

/** A quarter of the memory that this process may use, between 512 MB and 4 GB. */
function defaultHeapMb(): number {
  const limit = process.constrainedMemory()
  const bytes = limit > 0 ? Math.min(limit, totalmem()) : totalmem()
  return Math.round(Math.min(MAX_HEAP_MB, Math.max(MIN_HEAP_MB, bytes / 4 / 1024 ** 2)))
}
