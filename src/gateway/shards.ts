import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { RolloutError, toFailure, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { GatewayControl, GatewayStatus, SessionAccess, SessionOptions } from './gateway.ts'

/** What the processes say to each other. `init` comes first and is answered when the shard listens. */
interface Question {
  id: number
  method: 'init' | keyof GatewayControl
  args: unknown[]
}
interface Reply {
  id: number
  result?: unknown
  failure?: Failure
}

// --- in the shard -----------------------------------------------------------------------------------------------------

/** What a shard is started with. `settings` are the program's own. */
export interface ShardInit<T> {
  /** 0 the first time; the same port again after a crash, because harnesses hold its URL. */
  port: number
  settings: T
}

/** Turns this process into a shard: `start` makes the gateway, questions come from the process that forked us. */
export function serveShard<T>(
  start: (init: ShardInit<T>) => Promise<{ gateway: GatewayControl; port: number } & AsyncDisposable>,
): void {
  let shard: Awaited<ReturnType<typeof start>> | undefined
  process.on('message', (question: Question) => {
    void answer(question)
  })
  // The parent is gone: what is under way is stored, then there is nobody to serve for.
  process.on('disconnect', () => {
    void Promise.resolve(shard?.[Symbol.asyncDispose]()).finally(() => process.exit(0))
  })

  async function answer({ id, method, args }: Question): Promise<void> {
    const reply: Reply = { id }
    try {
      if (method === 'init') {
        shard = await start(args[0] as ShardInit<T>)
        reply.result = shard.port
      } else if (shard !== undefined) {
        const call = shard.gateway[method] as (...given: unknown[]) => Promise<unknown>
        reply.result = await call.apply(shard.gateway, args)
      }
    } catch (error) {
      reply.failure = toFailure(error)
    }
    process.send?.(reply)
  }
}

// --- in the parent ----------------------------------------------------------------------------------------------------

export interface ShardsOptions<T> {
  count: number
  /** The program of a shard; it calls `serveShard`. */
  program: URL
  settings: T
  ids: IdSource
  logger: Logger
}

/**
 * A gateway of several processes, each with a port of its own. A session lives in one of them and its base URL says in
 * which, so nothing stands in between. A shard that dies is started again on its port with the sessions it had: their
 * logs go on, their keys stay good, and only calls that were under way are lost to their harness's retry.
 */
export class Shards<T> implements GatewayControl, AsyncDisposable {
  readonly #options: ShardsOptions<T>
  readonly #shards: Shard<T>[]
  readonly #homes = new Map<string, { shard: Shard<T>; options: SessionOptions }>()
  #isPaused = false
  #weightVersion: string | undefined

  private constructor(options: ShardsOptions<T>) {
    this.#options = options
    this.#shards = Array.from(
      { length: options.count },
      (_, i) => new Shard(i, options, (shard) => this.#restore(shard)),
    )
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

  async openSession(options: SessionOptions = {}): Promise<SessionAccess> {
    const id = options.id ?? this.#options.ids.next('ses')
    if (this.#homes.has(id)) throw new RolloutError('config.invalid', `Session ${id} is already open.`)
    const shard = this.#emptiest()
    this.#homes.set(id, { shard, options: { ...options, id } })
    try {
      const access = (await shard.ask('openSession', [{ ...options, id }])) as SessionAccess
      this.#homes.set(id, { shard, options: { ...options, id, key: access.key } })
      return access
    } catch (error) {
      this.#homes.delete(id)
      throw error
    }
  }

  async closeSession(id: string): Promise<Failure | undefined> {
    const home = this.#homes.get(id)
    this.#homes.delete(id)
    return (await home?.shard.ask('closeSession', [id])) as Failure | undefined
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

  /** What a shard must know again after it was started anew. */
  async #restore(shard: Shard<T>): Promise<void> {
    if (this.#weightVersion !== undefined) await shard.ask('setWeightVersion', [this.#weightVersion])
    if (this.#isPaused) await shard.ask('pause', [0])
    for (const home of this.#homes.values()) {
      if (home.shard === shard && home.options.key !== undefined) await shard.ask('openSession', [home.options])
    }
  }
}

const RESTART_AFTER_MS = 100

class Shard<T> {
  readonly #index: number
  readonly #options: ShardsOptions<T>
  readonly #onRestart: (shard: Shard<T>) => Promise<void>
  readonly #waiting = new Map<number, PromiseWithResolvers<unknown>>()
  #child: ChildProcess | undefined
  #port = 0
  #nextId = 0
  #isStopping = false

  constructor(index: number, options: ShardsOptions<T>, onRestart: (shard: Shard<T>) => Promise<void>) {
    this.#index = index
    this.#options = options
    this.#onRestart = onRestart
  }

  async start(): Promise<void> {
    const child = fork(this.#options.program, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    this.#child = child
    child.on('message', (reply: Reply) => this.#settle(reply))
    child.once('exit', (code, signal) => {
      void this.#lost(`gateway process ${this.#index} ended (${signal ?? `exit code ${code}`})`)
    })
    const init: ShardInit<T> = { port: this.#port, settings: this.#options.settings }
    this.#port = (await this.ask('init', [init])) as number
  }

  ask(method: Question['method'], args: unknown[]): Promise<unknown> {
    const child = this.#child
    if (child?.connected !== true) return Promise.reject(gone('is being started again'))
    const id = this.#nextId++
    const waiting = Promise.withResolvers<unknown>()
    this.#waiting.set(id, waiting)
    child.send({ id, method, args } satisfies Question)
    return waiting.promise
  }

  async stop(): Promise<void> {
    this.#isStopping = true
    const child = this.#child
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    if (child.connected) child.disconnect()
    const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
    await exited
    clearTimeout(timer)
  }

  #settle({ id, result, failure }: Reply): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    if (failure === undefined) waiting?.resolve(result)
    else waiting?.reject(new RolloutError(failure.code, failure.message, { status: failure.status }))
  }

  async #lost(message: string): Promise<void> {
    for (const waiting of this.#waiting.values()) waiting.reject(gone('ended'))
    this.#waiting.clear()
    // A shard that never listened failed for a reason that another try will not cure.
    if (this.#isStopping || this.#port === 0) return
    this.#options.logger.error({ shard: this.#index }, message)
    await sleep(RESTART_AFTER_MS)
    try {
      await this.start()
      await this.#onRestart(this)
    } catch (error) {
      this.#options.logger.error({ shard: this.#index, err: error }, 'gateway process could not be started again')
    }
  }
}

function gone(what: string): RolloutError {
  return new RolloutError('internal.bug', `The gateway process ${what}; try again.`, { status: 503 })
}
