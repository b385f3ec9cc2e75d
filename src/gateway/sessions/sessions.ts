import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import { JsonMemory } from '../../lib/json/json-memory.ts'
import { createSteadyClock } from '../../lib/async/steady-clock.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import { isId, type IdSource } from '../../model/ids.ts'
import { SESSION_MEMORY_MB } from '../../model/session.ts'
import type { Sampling } from '../../model/turn.ts'
import type { SessionLog, SessionStore } from '../../store/store.ts'
import { PromptIdCache } from '../upstreams/wire/fast/read-fast.ts'
import type { TextSealer } from '../dialects/dialect.ts'
import { AnswerHistory } from './answer-history.ts'
import { LiveTurns } from './live-turns.ts'
import { isFull, storeFull } from './store-full.ts'
import { Continuations, type ThinkingPolicy } from '../tokens/continuation.ts'
import { createTextSealer } from './text-sealer.ts'

/** A session that the gateway serves. The gateway keeps a digest of its key; only its harness has the key. */
export interface Session {
  readonly id: string
  readonly log: SessionLog
  /** Unix milliseconds that never decrease while the session is open. */
  now(): number
  /** Overrides the sampling parameters of the harness. */
  readonly sampling: Partial<Sampling>
  readonly sealer: TextSealer
  /** Conversations and tool calls that the model answered. */
  readonly answerHistory: AnswerHistory
  /** Prompt ids of the latest answer, with their bytes on the wire. */
  readonly promptIdCache: PromptIdCache
  /** Latest request bodies: a body that extends one of them shares its objects. */
  readonly parsedBodies: JsonMemory
  /** See `RequestContext.parsedParts`. */
  parsedPartsOf(dialect: string): WeakMap<object, unknown>
  /** Token ids of earlier calls, which later prompts continue. Undefined: the engine renders every prompt. */
  readonly continuations: Continuations | undefined
  readonly liveTurns: LiveTurns
  /** The failure that every call gets. Undefined: calls are accepted. */
  readonly refusal: Failure | undefined
  /** A failed turn records that calls are rejected. */
  isRefusalLogged: boolean
  /** Harness requests that are not answered yet. */
  readonly inFlight: Set<Promise<void>>
}

export interface SessionOptions {
  /** Absent: a new id. */
  id?: string
  /** Absent: a new key. Present when a session continues in another process. */
  key?: string
  /** See `SessionOpening.isContinued`. */
  isContinued?: boolean
  /** All calls of the session are rejected with this failure. */
  refusal?: Failure
  origin?: Readonly<Record<string, unknown>>
  /** Overrides the sampling parameters of the harness: the trainer relies on them. */
  sampling?: Partial<Sampling>
}

export interface OpenedSession {
  session: Session
  /** Returned only here: the gateway keeps a digest of it. */
  key: string
}

/**
 * Whether a prompt literally continues the tokens of earlier calls. `off`: the engine renders every prompt. The other
 * values choose what happens where the chat template would drop the reasoning of a turn.
 */
export type ContinuationMode = ThinkingPolicy | 'off'

/** The open sessions, and the keys that authenticate their harnesses. */
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
    /** Milliseconds that never decrease. */
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

  async open(options: SessionOptions = {}): Promise<OpenedSession> {
    const id = options.id ?? this.#ids.next('ses')
    if (!isId(id)) throw new RolloutError('config.invalid', `"${id}" is not a valid session id.`)
    if (this.#byId.has(id)) throw new RolloutError('config.invalid', `Session ${id} is already open.`)
    const key = options.key ?? `sk-polar-${randomBytes(32).toString('base64url')}`
    const digest = digestOf(key)
    const now = createSteadyClock(this.#now, this.#monotonic)
    const log = await this.#store.open({
      id,
      createdAt: now(),
      origin: options.origin ?? {},
      isContinued: options.isContinued,
    })
    await assertNotFull(log)
    const half = this.#memoryBytes / 2
    const session: Session = {
      id,
      log,
      now,
      sampling: options.sampling ?? {},
      sealer: createTextSealer(key),
      answerHistory: new AnswerHistory(half),
      promptIdCache: new PromptIdCache(),
      parsedBodies: new JsonMemory(),
      parsedPartsOf: createParsedParts(),
      continuations:
        this.#thinking === 'off' ? undefined : new Continuations({ thinking: this.#thinking, memoryBytes: half }),
      liveTurns: new LiveTurns(),
      refusal: options.refusal,
      isRefusalLogged: false,
      inFlight: new Set(),
    }
    this.#byId.set(id, { session, digest })
    this.#byDigest.set(digest.toString('base64'), id)
    return { session, key }
  }

  /**
   * Returns the session of this key. A session id from the path must match the key. Throws the same error for an unknown
   * session and for a wrong key, so that a caller cannot find out which sessions exist.
   */
  authenticate(sessionId: string | undefined, key: string | undefined): Session {
    if (key === undefined || key === '') throw unauthorized('The request has no API key.')
    const digest = digestOf(key)
    const id = sessionId ?? this.#byDigest.get(digest.toString('base64'))
    const known = id === undefined ? undefined : this.#byId.get(id)
    const matches = timingSafeEqual(digest, known?.digest ?? digestOf(''))
    if (known === undefined || !matches) throw unauthorized('This API key does not belong to this session.')
    return known.session
  }

  /**
   * Rejects further calls, waits for the calls in flight, and closes the log. Resolves with the failure that made the log
   * incomplete.
   */
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

/** A session that cannot be recorded would waste GPU time, so a full disk is reported when the session is opened. */
async function assertNotFull(log: SessionLog): Promise<void> {
  if (!isFull(log)) return
  await log.close()
  throw storeFull()
}

function createParsedParts(): (dialect: string) => WeakMap<object, unknown> {
  const byDialect = new Map<string, WeakMap<object, unknown>>()
  return (dialect) => {
    let parsed = byDialect.get(dialect)
    if (parsed === undefined) byDialect.set(dialect, (parsed = new WeakMap()))
    return parsed
  }
}

function digestOf(key: string): Buffer {
  return hash('sha256', key, 'buffer')
}

function unauthorized(message: string): RolloutError {
  return new RolloutError('request.unauthorized', message)
}
