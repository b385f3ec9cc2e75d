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

/** What sessions may take of a gateway. Absent limits have the defaults of the gateway. */
export interface GatewayLimits {
  /** Heap of each process; absent: `defaultHeapMb`. */
  heapMb?: number
  /** Request bodies of the calls in flight of one session. */
  sessionBodyMb?: number
  /** The same of all sessions; absent: an eighth of the heap. A body takes several times its size while it is parsed. */
  totalBodyMb?: number
  /** Call log of one session. */
  sessionLogMb?: number
  /** Calls in flight of one session. */
  sessionCalls?: number
}

/** Gateway processes under supervision, apart from the event loop of this process. */
export function openGateway({
  count,
  settings,
  limits = {},
  hangMs,
  logger,
}: GatewayChoice): Promise<Shards<ShardSettings>> {
  const { heapMb = defaultHeapMb(), totalBodyMb = Math.max(LEAST_TOTAL_MB, Math.floor(heapMb / 8)) } = limits
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
    ...(hangMs === undefined ? {} : { hangMs }),
    ids: randomIds(Date.now),
    logger,
  })
}

const MOST_HEAP_MB = 4096
const LEAST_HEAP_MB = 512
/** Room for one body of the largest size. */
const LEAST_TOTAL_MB = 64

/** A quarter of the memory that this process may use, between 512 MB and 4 GB. */
function defaultHeapMb(): number {
  const limit = process.constrainedMemory()
  const bytes = limit > 0 ? Math.min(limit, totalmem()) : totalmem()
  return Math.round(Math.min(MOST_HEAP_MB, Math.max(LEAST_HEAP_MB, bytes / 4 / 1024 ** 2)))
}
