import { hash } from 'node:crypto'
import { RecentMap } from '../../lib/collections/recent-map.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { RequestContext } from '../dialects/dialect.ts'
import type { LiveTurn } from './live-turn.ts'

export interface RequestIdentity {
  /** SHA-1 of the body. */
  digest: string
  /** The idempotency key; undefined when the harness sent none. */
  key: string | undefined
  /** Whether an idempotency key or the retry count of an SDK marks a request that may repeat another. */
  mayRepeat: boolean
}

/** Equal bodies alone are no retry: agents sample several answers to one prompt. So a header has to mark a retry. */
export function identifyRequest({ wire }: TurnRequest, headers: RequestContext['headers']): RequestIdentity {
  const idempotencyKey = headers['idempotency-key']
  const key = typeof idempotencyKey === 'string' ? `key ${idempotencyKey}` : undefined
  const isRetry = Number(headers['x-stainless-retry-count'] ?? 0) > 0
  return { digest: hash('sha1', wire.text, 'base64'), key, mayRepeat: key !== undefined || isRetry }
}

/**
 * The calls of one session that are in flight. A harness that retries while its first call is in flight receives the
 * answer of that call: a second generation would cost the engine twice and leave an answer that no harness reads.
 */
export class LiveTurns {
  /** By digest and by idempotency key. */
  readonly #inFlight = new Map<string, LiveTurn>()
  /** The id of the latest turn with each body, by digest. */
  readonly #latestIds = new RecentMap<string>(256)

  /** The call in flight that a request repeats. */
  find({ digest, key, mayRepeat }: RequestIdentity): LiveTurn | undefined {
    return mayRepeat ? this.#inFlight.get(key ?? digest) : undefined
  }

  /** The id of the latest turn that a request repeats, whether it is in flight or has ended. */
  findRetried({ digest, mayRepeat }: RequestIdentity): string | undefined {
    return mayRepeat ? this.#latestIds.get(digest) : undefined
  }

  add({ digest, key }: RequestIdentity, turn: LiveTurn): void {
    const names = key === undefined ? [digest] : [digest, key]
    for (const name of names) this.#inFlight.set(name, turn)
    this.#latestIds.set(digest, turn.id)
    void turn.ended.finally(() => {
      for (const name of names) if (this.#inFlight.get(name) === turn) this.#inFlight.delete(name)
    })
  }
}

/** Headers with credentials and headers of the transport. */
const NOT_STORED =
  /^(authorization|x-api-key|x-goog-api-key|cookie|proxy-authorization|host|connection|content-length|accept.*)$/
const LONGEST_HEADER = 2000

export function storedHeaders(headers: RequestContext['headers']): Record<string, string> {
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) => {
      if (NOT_STORED.test(name) || value === undefined) return []
      return [[name, (Array.isArray(value) ? value.join(', ') : value).slice(0, LONGEST_HEADER)]]
    }),
  )
}
