import type { Socket } from 'node:net'
import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { IdSource } from '../../model/ids.ts'
import type { SessionProgress } from '../../model/session.ts'
import type { GatewayControl, GatewayStatus, SessionAccess } from '../gateway.ts'
import type { TurnReport } from '../handle-turn.ts'
import type { SessionOptions } from '../sessions/sessions.ts'
import { countCrash, type CrashRecord } from './crash-suspects.ts'
import { rejectConnection } from '../http/reject-connection.ts'
import { Shard, type SendRequest, type ShardOptions } from './shard.ts'

export interface ShardsOptions<T> extends ShardOptions<T> {
  count: number
  /** The address that the processes listen on, for `url`. */
  host: string
  ids: IdSource
  /** A session is refused after so many deaths of its process in a row, all during its calls. Default 3. */
  crashLimit?: number
}

interface OpenSession<T> extends CrashRecord {
  shard: Shard<T>
  /** Includes the key once the session is open. */
  options: SessionOptions
  progress: SessionProgress
}

const CRASH_LIMIT = 3

/**
 * A gateway of several processes, each with its own port. A session belongs to one process, and its base URL contains the
 * port of that process, so no proxy is needed. A process that exits is restarted on its port with its sessions: their logs
 * continue and their keys stay valid. Only calls in flight fail, and their harnesses retry them.
 */
export class Shards<T> implements GatewayControl, AsyncDisposable {
  readonly #options: ShardsOptions<T>
  readonly #shards: Shard<T>[]
  readonly #sessions = new Map<string, OpenSession<T>>()
  #isPaused = false
  #weightVersion: string | undefined

  private constructor(options: ShardsOptions<T>) {
    this.#options = options
    this.#shards = Array.from({ length: options.count }, (_, index) => {
      const shard: Shard<T> = new Shard(index, options, {
        onRestart: (send) => this.#restore(shard, send),
        onTurn: (turn) => this.#countTurn(turn),
        onBusy: ({ sessionId, isBusy }) => {
          const session = this.#sessions.get(sessionId)
          if (session !== undefined) session.isBusy = isBusy
        },
        onCrash: () => this.#rejectSessionsThatCrash(shard),
      })
      return shard
    })
  }

  static async start<T>(options: ShardsOptions<T>): Promise<Shards<T>> {
    const shards = new Shards(options)
    try {
      await Promise.all(shards.#shards.map((shard) => shard.start()))
    } catch (error) {
      await shards[Symbol.asyncDispose]()
      throw error
    }
    return shards
  }

  /** The URL of the first process. */
  get url(): string {
    const { host } = this.#options
    return `http://${host.includes(':') ? `[${host}]` : host}:${this.#shards[0]?.port ?? 0}`
  }

  async openSession(options: SessionOptions = {}): Promise<SessionAccess> {
    const id = options.id ?? this.#options.ids.next('ses')
    if (this.#sessions.has(id)) throw new RolloutError('config.invalid', `Session ${id} is already open.`)
    const opened: OpenSession<T> = {
      shard: this.#leastLoaded(),
      options: { ...options, id },
      progress: { calls: 0, tokens: 0 },
      isBusy: false,
      crashes: 0,
    }
    this.#sessions.set(id, opened)
    try {
      const access = (await opened.shard.request('openSession', [opened.options])) as SessionAccess
      opened.options = { ...opened.options, key: access.key }
      return access
    } catch (error) {
      this.#sessions.delete(id)
      throw error
    }
  }

  async closeSession(id: string): Promise<Failure | undefined> {
    const session = this.#sessions.get(id)
    try {
      // If the process exits meanwhile, it is restarted with this session, so that the log is closed.
      return (await session?.shard.request('closeSession', [id])) as Failure | undefined
    } finally {
      if (this.#sessions.get(id) === session) this.#sessions.delete(id)
    }
  }

  /** See `Gateway.accept`. Passes the socket to the process of its session. The socket must be paused and unread. */
  accept(sessionId: string, socket: Socket): void {
    const session = this.#sessions.get(sessionId)
    if (session === undefined) rejectConnection(socket)
    else session.shard.accept(sessionId, socket)
  }

  /** Undefined when the session is not open. */
  progressOf(sessionId: string): SessionProgress | undefined {
    return this.#sessions.get(sessionId)?.progress
  }

  async pause(drainTimeoutMs: number): Promise<boolean> {
    this.#isPaused = true
    return (await this.#all('pause', [drainTimeoutMs])).every(Boolean)
  }

  async resume(): Promise<void> {
    this.#isPaused = false
    await this.#all('resume', [])
  }

  async setWeightVersion(version: string): Promise<void> {
    this.#weightVersion = version
    await this.#all('setWeightVersion', [version])
  }

  async status(): Promise<GatewayStatus> {
    const each = (await this.#all('status', [])) as GatewayStatus[]
    const inFlight = each.reduce((sum, status) => sum + status.inFlight, 0)
    return { paused: this.#isPaused, inFlight, sessions: this.#sessions.size, weightVersion: this.#weightVersion }
  }

  async metrics(): Promise<Record<string, number>[]> {
    return (await this.#all('metrics', [])).flat() as Record<string, number>[]
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#sessions.keys()].map((id) => this.closeSession(id).catch(() => undefined)))
    await Promise.all(this.#shards.map((shard) => shard.stop()))
  }

  #all(method: keyof GatewayControl, args: unknown[]): Promise<unknown[]> {
    return Promise.all(this.#shards.map((shard) => shard.request(method, args)))
  }

  #leastLoaded(): Shard<T> {
    const counts = new Map(this.#shards.map((shard) => [shard, 0]))
    for (const { shard } of this.#sessions.values()) counts.set(shard, (counts.get(shard) ?? 0) + 1)
    return [...counts].reduce((least, entry) => (entry[1] < least[1] ? entry : least))[0]
  }

  #countTurn({ sessionId, tokens, oldestVersion }: TurnReport): void {
    const progress = this.#sessions.get(sessionId)?.progress
    if (progress === undefined) return
    progress.calls += 1
    progress.tokens += tokens
    if (oldestVersion === undefined) return
    progress.oldestVersion = Math.min(oldestVersion, progress.oldestVersion ?? oldestVersion)
  }

  #rejectSessionsThatCrash(shard: Shard<T>): void {
    const { crashLimit = CRASH_LIMIT, logger } = this.#options
    const own = [...this.#sessions.values()].filter(
      (each) => each.shard === shard && each.options.refusal === undefined,
    )
    for (const session of countCrash(own, crashLimit)) {
      const { crashes } = session
      const message = `The gateway process died ${crashes} times in a row while calls of this session were in flight. Further calls are rejected.`
      session.options = { ...session.options, refusal: new RolloutError('request.crashed-gateway', message).failure }
      logger.error(
        { sessionId: session.options.id, crashes },
        'session kills the gateway process; its calls are rejected',
      )
    }
  }

  /** Sends a restarted shard its weight version, its pause and its sessions. */
  async #restore(shard: Shard<T>, send: SendRequest): Promise<void> {
    if (this.#weightVersion !== undefined) await send('setWeightVersion', [this.#weightVersion])
    if (this.#isPaused) await send('pause', [0])
    const own = [...this.#sessions.values()].filter((each) => each.shard === shard && each.options.key !== undefined)
    await Promise.all(
      own.map(async ({ options }) => {
        await send('openSession', [{ ...options, isContinued: true }]).catch((error: unknown) => {
          if (toFailure(error).code === 'session.gateway-lost') throw error
          // A session that cannot be continued must not prevent the others.
          this.#options.logger.error({ sessionId: options.id, err: error }, 'session could not be continued')
        })
      }),
    )
  }
}
