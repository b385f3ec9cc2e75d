import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import { JsonMemory } from '../../lib/json/json-memory.ts'
import { RecentMap } from '../../lib/collections/recent-map.ts'
import { createSteadyClock } from '../../lib/async/steady-clock.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import { isId, type IdSource } from '../../model/ids.ts'
import { SESSION_MEMORY_MB } from '../../model/session.ts'
import type { Sampling } from '../../model/turn.ts'
import type { SessionLog, SessionStore } from '../../store/store.ts'
import { PromptMemory } from '../upstreams/wire/fast/prompt-memory.ts'
import type { Vault } from '../dialects/dialect.ts'
import type { LiveTurn } from '../live-turn.ts'
import { SessionMemory } from './session-memory.ts'
import { isFull, storeFull } from './store-full.ts'
import { Continuations, type ThinkingPolicy } from '../tokens/continuation.ts'
import { createVault } from './text-sealer.ts'

/** A session the gateway serves. Its key is known to its harness only; here a digest of it is kept. */
export interface Session {
  readonly id: string
  readonly log: SessionLog
  /** Unix milliseconds that never go back while the session is open. */
  now(): number
  /** What sampling must be whatever the harness asks for. */
  readonly sampling: Partial<Sampling>
  readonly vault: Vault
  readonly memory: SessionMemory
  readonly promptMemory: PromptMemory
  /** The bodies of its calls. */
  readonly bodies: JsonMemory
  /** See `RequestContext.known`, by dialect. */
  knownTo(dialect: string): WeakMap<object, unknown>
  /** Absent: every prompt is rendered anew. */
  readonly continuations: Continuations | undefined
  /** Turns under way, by digest of their body and by idempotency key. */
  readonly live: Map<string, LiveTurn>
  /** The last turn with each body, by digest. */
  readonly lastTurns: RecentMap<string>
  /** Why all calls are refused; absent: they are not. */
  readonly refusal: Failure | undefined
  /** That calls are refused is recorded. */
  isRefusalLogged: boolean
  /** Calls that have begun and whose end is not recorded yet. */
  readonly inFlight: Set<Promise<void>>
}

interface OpeningOptions {
  id?: string
  key?: string
  origin?: Readonly<Record<string, unknown>>
  sampling?: Partial<Sampling>
  isContinued?: boolean
  refusal?: Failure
}

export interface OpenedSession {
  session: Session
  /** Given out once; cannot be asked for again. */
  key: string
}

/**
 * Whether prompts go on token by token from earlier calls: `off` renders every prompt anew; the others say what happens
 * where the template would drop a turn's reasoning.
 */
export type ContinuationMode = ThinkingPolicy | 'off'

/** Who may call, and as which session. */
export class Sessions {
  readonly #store: SessionStore
  readonly #ids: IdSource
  readonly #now: () => number
  readonly #monotonic: () => number
  readonly #thinking: ContinuationMode
  readonly #memoryBytes: number
  readonly #byId = new Map<string, { session: Session; digest: Buffer }>()
  readonly #byDigest = new Map<string, string>()

  constructor(deps: {
    store: SessionStore
    ids: IdSource
    now: () => number
    /** Milliseconds that never go back. */
    monotonic: () => number
    continuation?: ContinuationMode
    memoryMb?: number
  }) {
    this.#memoryBytes = (deps.memoryMb ?? SESSION_MEMORY_MB) * 1024 * 1024
    this.#thinking = deps.continuation ?? 'template'
    this.#store = deps.store
    this.#ids = deps.ids
    this.#now = deps.now
    this.#monotonic = deps.monotonic
  }

  get size(): number {
    return this.#byId.size
  }

  async open(options: OpeningOptions = {}): Promise<OpenedSession> {
    const id = options.id ?? this.#ids.next('ses')
    if (!isId(id)) throw new RolloutError('config.invalid', `"${id}" cannot be a session id.`)
    if (this.#byId.has(id)) throw new RolloutError('config.invalid', `Session ${id} is already open.`)
    const key = options.key ?? `sk-polar-${randomBytes(32).toString('base64url')}`
    const digest = digestOf(key)
    const now = createSteadyClock(this.#now, this.#monotonic)
    const log = await this.#store.open({
      id,
      createdAt: now(),
      origin: options.origin ?? {},
      ...(options.isContinued === true ? { isContinued: true } : {}),
    })
    await assertNotFull(log)
    const half = this.#memoryBytes / 2
    const session: Session = {
      id,
      log,
      now,
      sampling: options.sampling ?? {},
      vault: createVault(key),
      memory: new SessionMemory(half),
      promptMemory: new PromptMemory(),
      bodies: new JsonMemory(),
      knownTo: createKnown(),
      continuations:
        this.#thinking === 'off' ? undefined : new Continuations({ thinking: this.#thinking, memoryBytes: half }),
      live: new Map(),
      lastTurns: new RecentMap(256),
      refusal: options.refusal,
      isRefusalLogged: false,
      inFlight: new Set(),
    }
    this.#byId.set(id, { session, digest })
    this.#byDigest.set(digest.toString('base64'), id)
    return { session, key }
  }

  /**
   * The session that owns this key. With an id from the path both must agree; without one the key alone decides. Says the
   * same for an unknown session and a wrong key, so that neither can be probed for.
   */
  authenticate(sessionId: string | undefined, key: string | undefined): Session {
    if (key === undefined || key === '') throw unauthorized('No API key was given.')
    const digest = digestOf(key)
    const id = sessionId ?? this.#byDigest.get(digest.toString('base64'))
    const known = id === undefined ? undefined : this.#byId.get(id)
    const matches = timingSafeEqual(digest, known?.digest ?? digestOf(''))
    if (known === undefined || !matches) throw unauthorized('This API key does not belong to this session.')
    return known.session
  }

  /** Refuses further calls, waits for those under way, and closes the log. Gives what kept it from being whole. */
  async close(sessionId: string): Promise<Failure | undefined> {
    const known = this.#byId.get(sessionId)
    if (known === undefined) return undefined
    this.#byId.delete(sessionId)
    this.#byDigest.delete(known.digest.toString('base64'))
    await Promise.allSettled(known.session.inFlight)
    await known.session.log.close()
    return known.session.log.broken
  }

  async closeAll(): Promise<void> {
    await Promise.all([...this.#byId.keys()].map((id) => this.close(id)))
  }
}

/** A full disk is known at once; a session that is not recorded costs GPU time for nothing. */
async function assertNotFull(log: SessionLog): Promise<void> {
  if (!isFull(log)) return
  await log.close()
  throw storeFull()
}

function createKnown(): (dialect: string) => WeakMap<object, unknown> {
  const byDialect = new Map<string, WeakMap<object, unknown>>()
  return (dialect) => {
    let known = byDialect.get(dialect)
    if (known === undefined) byDialect.set(dialect, (known = new WeakMap()))
    return known
  }
}

function digestOf(key: string): Buffer {
  return hash('sha256', key, 'buffer')
}

function unauthorized(message: string): RolloutError {
  return new RolloutError('request.unauthorized', message)
}
