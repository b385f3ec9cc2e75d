import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { Logger } from 'pino'
import { scopeConnections } from '../lib/async/fault-scope.ts'
import { RolloutError, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import { SESSION_LOG_MB } from '../model/session.ts'
import type { Sampling } from '../model/turn.ts'
import type { SessionStore } from '../store/store.ts'
import { createApp, refuseUpgrade } from './http/app.ts'
import { BodyBudget, DEFAULT_BUDGET, type BudgetLimits } from './http/body-budget.ts'
import { dialects } from './dialects/index.ts'
import { Gate } from './sessions/gate.ts'
import { Metrics } from './sessions/metrics.ts'
import { quirksWith } from './quirks/index.ts'
import type { QuirkRule } from './quirks/rule.ts'
import { DEFAULT_LIMITS, type BodyLimits } from './http/read-body.ts'
import { Sessions, type ContinuationMode } from './sessions/sessions.ts'
import type { Upstream } from './upstreams/upstream.ts'
import { WeightHistory } from './sessions/weight-history.ts'

export interface GatewayOptions {
  upstream: Upstream
  store: SessionStore
  ids: IdSource
  now: () => number
  /** Milliseconds that never go back. Default `performance.now`. */
  monotonic?: () => number
  logger: Logger
  /** Loopback by default: whoever reaches the data plane and has a key can spend GPU time. */
  host?: string
  /** 0 takes a free one. */
  port?: number
  limits?: Partial<BodyLimits>
  /** Absent, or of an absent limit: `DEFAULT_BUDGET`. */
  budget?: Partial<BudgetLimits>
  /** Limit of the call log of one session; calls beyond it are refused. Absent: SESSION_LOG_MB. */
  sessionLogMb?: number
  /** Default `template`. */
  continuation?: ContinuationMode
  /** Limit of the memory of one session that continues its conversations; absent: SESSION_MEMORY_MB. */
  sessionMemoryMb?: number
  /** Rules of the user's, besides the built-in quirks. Noted in the origin of every session. */
  quirks?: readonly QuirkRule[]
  /** What is noted of every session besides what it says of itself: which engine answers. */
  origin?: Readonly<Record<string, unknown>>
  /** Called when a model call has ended and is stored. `tokens`: sampled in it. */
  onTurnEnd?: (turn: { sessionId: string; tokens: number }) => void
}

export interface SessionOptions {
  /** Absent: made up. */
  id?: string
  /** Absent: made up. Given when a session goes on in another process. */
  key?: string
  /** See `SessionOpening.isContinued`. */
  isContinued?: boolean
  origin?: Readonly<Record<string, unknown>>
  /** What sampling must be whatever the harness asks for: the trainer counts on it. */
  sampling?: Partial<Sampling>
}

/** What a harness needs to be given. */
export interface SessionAccess {
  id: string
  /** Without `/v1` or the like; each API's path follows it. */
  baseUrl: string
  key: string
}

export interface GatewayStatus {
  paused: boolean
  inFlight: number
  sessions: number
  weightVersion: string | undefined
}

/** What a trainer or node may do with a gateway, be it one process or several. */
export interface GatewayControl {
  openSession(options?: SessionOptions): Promise<SessionAccess>
  /** From here on its key is refused. Gives what kept the log from being whole; undefined when nothing did. */
  closeSession(id: string): Promise<Failure | undefined>
  /** Holds new calls back. Resolves with whether those under way ended in time; it stays paused either way. */
  pause(drainTimeoutMs: number): Promise<boolean>
  resume(): Promise<void>
  /** The weights that the engine samples with from here on. Called while the engine samples nothing or calls are held. */
  setWeightVersion(version: string): Promise<void>
  status(): Promise<GatewayStatus>
  /** Counters of each process. */
  metrics(): Promise<Record<string, number>[]>
}

/** A listening data plane. Owns its sessions and their logs; the upstream and the store belong to the caller. */
export class Gateway implements GatewayControl, AsyncDisposable {
  readonly #server: Server
  readonly #sessions: Sessions
  readonly #gate = new Gate()
  readonly #weights = new WeightHistory()
  readonly #metrics = new Metrics()
  readonly #quirks: readonly QuirkRule[]
  readonly #origin: Readonly<Record<string, unknown>>
  /** Connections that may only speak for one session, whatever key they show. */
  readonly #bound = new WeakMap<Socket, string>()
  /** The number of open connections of each session that has such connections. */
  readonly #connections = new Map<string, number>()
  #url = ''

  private constructor(options: GatewayOptions) {
    const { store, ids, now, upstream, logger } = options
    this.#quirks = options.quirks ?? []
    this.#origin = { ...options.origin, ...(this.#quirks.length === 0 ? {} : { quirks: this.#quirks }) }
    this.#sessions = new Sessions({
      store,
      ids,
      now,
      monotonic: options.monotonic ?? (() => performance.now()),
      continuation: options.continuation,
      memoryMb: options.sessionMemoryMb,
    })
    const app = createApp({
      upstream,
      ids,
      now,
      logger,
      dialects,
      gate: this.#gate,
      weights: this.#weights,
      metrics: this.#metrics,
      quirks: quirksWith(this.#quirks),
      sessions: this.#sessions,
      boundSession: (socket) => this.#bound.get(socket),
      limits: { ...DEFAULT_LIMITS, ...options.limits },
      bodyBudget: new BodyBudget({ ...DEFAULT_BUDGET, ...options.budget }),
      logBytes: (options.sessionLogMb ?? SESSION_LOG_MB) * 1024 ** 2,
      onTurnEnd: options.onTurnEnd,
    })
    // No limit on the time of a whole request: an answer takes as long as the engine does.
    const timeouts = { requestTimeout: 0, headersTimeout: 60_000, keepAliveTimeout: 65_000 }
    this.#server = createServer({ ...timeouts, noDelay: true }, app).on('upgrade', refuseUpgrade)
    scopeConnections(this.#server)
    // A connection that cannot be accepted, for want of file descriptors for example.
    this.#server.on('error', (error) => logger.error({ err: error }, 'gateway cannot accept connections'))
  }

  static async start(options: GatewayOptions): Promise<Gateway> {
    const gateway = new Gateway(options)
    const host = options.host ?? '127.0.0.1'
    await listen(gateway.#server, host, options.port ?? 0)
    const { port } = gateway.#server.address() as AddressInfo
    gateway.#url = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
    return gateway
  }

  get url(): string {
    return this.#url
  }

  async openSession(options: SessionOptions = {}): Promise<SessionAccess> {
    const { session, key } = await this.#sessions.open({ ...options, origin: { ...options.origin, ...this.#origin } })
    return { id: session.id, baseUrl: `${this.url}/s/${session.id}`, key }
  }

  closeSession(id: string): Promise<Failure | undefined> {
    return this.#sessions.close(id)
  }

  /**
   * A connection that came in by a session's own door: a sandbox that reaches nothing but this. Other sessions are out of
   * its reach even with their keys. Connections over the limit of a session are closed.
   */
  accept(sessionId: string, socket: Socket): void {
    const count = this.#connections.get(sessionId) ?? 0
    if (count >= MAX_SESSION_CONNECTIONS) return void socket.destroy()
    this.#connections.set(sessionId, count + 1)
    socket.once('close', () => this.#forgetConnection(sessionId))
    this.#bound.set(socket, sessionId)
    this.#server.emit('connection', socket)
    // A door that passes sockets to another process pauses them.
    socket.resume()
  }

  /** Calls in flight end at once, as if their harnesses had gone. */
  cutConnections(): void {
    this.#server.closeAllConnections()
  }

  pause(drainTimeoutMs: number): Promise<boolean> {
    return this.#gate.pause(drainTimeoutMs)
  }

  async resume(): Promise<void> {
    this.#gate.resume()
  }

  async setWeightVersion(version: string): Promise<void> {
    this.#weights.name(version)
  }

  async status(): Promise<GatewayStatus> {
    return {
      paused: this.#gate.isPaused,
      inFlight: this.#gate.inFlight,
      sessions: this.#sessions.size,
      weightVersion: this.#weights.version,
    }
  }

  async metrics(): Promise<Record<string, number>[]> {
    return [this.#metrics.snapshot()]
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.#server.closeIdleConnections()
    this.#gate.resume()
    await this.#sessions.closeAll()
    this.#server.closeAllConnections()
    await closed
  }

  #forgetConnection(sessionId: string): void {
    const left = (this.#connections.get(sessionId) ?? 0) - 1
    if (left > 0) this.#connections.set(sessionId, left)
    else this.#connections.delete(sessionId)
  }
}

/** A hostile program can open as many connections as it likes; each costs a file descriptor. */
const MAX_SESSION_CONNECTIONS = 512

async function listen(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      reject(new RolloutError('config.invalid', `Cannot listen on ${host}:${port} (${error.code}).`, { cause: error }))
    })
    server.listen(port, host, resolve)
  })
}
