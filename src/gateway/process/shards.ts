import type { Socket } from 'node:net'
import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { IdSource } from '../../model/ids.ts'
import type { GatewayControl, GatewayStatus, SessionAccess, SessionOptions } from '../gateway.ts'
import { refuseConnection } from '../http/refuse-connection.ts'
import { countCrash, type CrashRecord } from './crash-suspects.ts'
import { Shard, type Ask, type ShardOptions } from './shard.ts'

export interface ShardsOptions<T> extends ShardOptions<T> {
  count: number
  /** The address that the processes listen on, for `url`. */
  host: string
  ids: IdSource
  /** A session is refused after so many deaths of its process in a row, all during its calls. Default 3. */
  crashLimit?: number
}

interface Home<T> extends CrashRecord {
  shard: Shard<T>
  /** With the key, once the session is open. */
  options: SessionOptions
  /** Calls that have ended, and the tokens sampled in them. */
  progress: { calls: number; tokens: number }
}

const CRASH_LIMIT = 3

/**
 * A gateway of several processes, each with a port of its own. A session lives in one of them and its base URL says in
 * which, so nothing stands in between. A shard that dies is started again on its port with the sessions it had: their
 * logs go on, their keys stay good, and only calls that were under way are lost to their harness's retry.
 */
export class Shards<T> implements GatewayControl, AsyncDisposable {
  readonly #options: ShardsOptions<T>
  readonly #shards: Shard<T>[]
  readonly #homes = new Map<string, Home<T>>()
  #isPaused = false
  #weightVersion: string | undefined

  private constructor(options: ShardsOptions<T>) {
    this.#options = options
    this.#shards = Array.from({ length: options.count }, (_, index) => {
      const shard: Shard<T> = new Shard(index, options, {
        onRestart: (ask) => this.#restore(shard, ask),
        onTurn: ({ sessionId, tokens }) => this.#countTurn(sessionId, tokens),
        onBusy: ({ sessionId, isBusy }) => {
          const home = this.#homes.get(sessionId)
          if (home !== undefined) home.isBusy = isBusy
        },
        onCrash: () => this.#refuseKillers(shard),
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

  /** Of the first process. */
  get url(): string {
    const { host } = this.#options
    return `http://${host.includes(':') ? `[${host}]` : host}:${this.#shards[0]?.port ?? 0}`
  }

  async openSession(options: SessionOptions = {}): Promise<SessionAccess> {
    const id = options.id ?? this.#options.ids.next('ses')
    if (this.#homes.has(id)) throw new RolloutError('config.invalid', `Session ${id} is already open.`)
    const home: Home<T> = {
      shard: this.#emptiest(),
      options: { ...options, id },
      progress: { calls: 0, tokens: 0 },
      isBusy: false,
      crashes: 0,
    }
    this.#homes.set(id, home)
    try {
      const access = (await home.shard.ask('openSession', [home.options])) as SessionAccess
      home.options = { ...home.options, key: access.key }
      return access
    } catch (error) {
      this.#homes.delete(id)
      throw error
    }
  }

  async closeSession(id: string): Promise<Failure | undefined> {
    const home = this.#homes.get(id)
    try {
      // A process that ends meanwhile is started again with this session, so that its log is closed.
      return (await home?.shard.ask('closeSession', [id])) as Failure | undefined
    } finally {
      if (this.#homes.get(id) === home) this.#homes.delete(id)
    }
  }

  /** See `Gateway.accept`. The socket has to be paused and unread; it passes to the process of its session. */
  accept(sessionId: string, socket: Socket): void {
    const home = this.#homes.get(sessionId)
    if (home === undefined) refuseConnection(socket)
    else home.shard.accept(sessionId, socket)
  }

  /** Undefined for a session that is not open. */
  progressOf(sessionId: string): Home<T>['progress'] | undefined {
    return this.#homes.get(sessionId)?.progress
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
    return { paused: this.#isPaused, inFlight, sessions: this.#homes.size, weightVersion: this.#weightVersion }
  }

  async metrics(): Promise<Record<string, number>[]> {
    return (await this.#all('metrics', [])).flat() as Record<string, number>[]
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#homes.keys()].map((id) => this.closeSession(id).catch(() => undefined)))
    await Promise.all(this.#shards.map((shard) => shard.stop()))
  }

  #all(method: keyof GatewayControl, args: unknown[]): Promise<unknown[]> {
    return Promise.all(this.#shards.map((shard) => shard.ask(method, args)))
  }

  #emptiest(): Shard<T> {
    const counts = new Map(this.#shards.map((shard) => [shard, 0]))
    for (const { shard } of this.#homes.values()) counts.set(shard, (counts.get(shard) ?? 0) + 1)
    return [...counts].reduce((least, entry) => (entry[1] < least[1] ? entry : least))[0]
  }

  #countTurn(sessionId: string, tokens: number): void {
    const progress = this.#homes.get(sessionId)?.progress
    if (progress === undefined) return
    progress.calls += 1
    progress.tokens += tokens
  }

  #refuseKillers(shard: Shard<T>): void {
    const { crashLimit = CRASH_LIMIT, logger } = this.#options
    const homes = [...this.#homes.values()].filter((home) => home.shard === shard && home.options.refusal === undefined)
    for (const home of countCrash(homes, crashLimit)) {
      const { crashes } = home
      const message = `The gateway process died ${crashes} times in a row while calls of this session were in flight. Its further calls are refused.`
      home.options = { ...home.options, refusal: new RolloutError('request.crashed-gateway', message).failure }
      logger.error({ sessionId: home.options.id, crashes }, 'session kills the gateway process; its calls are refused')
    }
  }

  /** What a shard must know again after it was started anew. */
  async #restore(shard: Shard<T>, ask: Ask): Promise<void> {
    if (this.#weightVersion !== undefined) await ask('setWeightVersion', [this.#weightVersion])
    if (this.#isPaused) await ask('pause', [0])
    const homes = [...this.#homes.values()].filter((home) => home.shard === shard && home.options.key !== undefined)
    await Promise.all(
      homes.map(async ({ options }) => {
        await ask('openSession', [{ ...options, isContinued: true }]).catch((error: unknown) => {
          if (toFailure(error).code === 'session.gateway-lost') throw error
          // One session that cannot go on must not keep the others from it.
          this.#options.logger.error({ sessionId: options.id, err: error }, 'session could not be continued')
        })
      }),
    )
  }
}
