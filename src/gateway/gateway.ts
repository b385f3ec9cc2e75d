import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { Logger } from 'pino'
import { scopeConnections } from '../lib/async/fault-scope.ts'
import { RolloutError, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import { SESSION_CALLS, SESSION_LOG_MB } from '../model/session.ts'
import type { SessionStore } from '../store/store.ts'
import { createApp, rejectUpgrade } from './http/app.ts'
import { BodyBudget, DEFAULT_BUDGET, type BudgetLimits } from './http/body-budget.ts'
import { dialects } from './dialects/index.ts'
import type { TurnReport } from './handle-turn.ts'
import { Gate } from './sessions/gate.ts'
import { Metrics } from './sessions/metrics.ts'
import { quirksWith } from './quirks/index.ts'
import type { QuirkRule } from './quirks/rule.ts'
import { DEFAULT_LIMITS, type BodyLimits } from './http/read-body.ts'
import { Sessions, type ContinuationMode, type SessionOptions } from './sessions/sessions.ts'
import { continuationOf, type ContinuationState, type Upstream } from './upstreams/upstream.ts'
import { WeightHistory } from './sessions/weight-history.ts'

export type { SessionOptions } from './sessions/sessions.ts'

export interface GatewayOptions {
  upstream: Upstream
  store: SessionStore
  ids: IdSource
  now: () => number
  /** Milliseconds that never decrease. Default `performance.now`. */
  monotonic?: () => number
  logger: Logger
  /** Default loopback: a program that reaches the data plane and has a key can spend GPU time. */
  host?: string
  /** 0 chooses a free port. */
  port?: number
  limits?: Partial<BodyLimits>
  /** Default of each limit: `DEFAULT_BUDGET`. */
  budget?: Partial<BudgetLimits>
  /** Limit of the call log of one session; calls beyond it are rejected. Absent: SESSION_LOG_MB. */
  sessionLogMb?: number
  /** Limit of the calls of one session in flight; calls beyond it get 429. Absent: SESSION_CALLS. */
  sessionCalls?: number
  /** Default `template`. */
  continuation?: ContinuationMode
  /** Limit of the memory for the conversations of one session. Absent: SESSION_MEMORY_MB. */
  sessionMemoryMb?: number
  /** The user's rules, in addition to the built-in quirks. Stored in the origin of every session. */
  quirks?: readonly QuirkRule[]
  /** Stored in the origin of every session: which engine answers. */
  origin?: Readonly<Record<string, unknown>>
  /** Called when a model call has ended and is stored. */
  onTurnEnd?: (turn: TurnReport) => void
  /** Called when the first of a session's calls in flight begins, and when the last has ended. */
  onBusy?: (session: { sessionId: string; isBusy: boolean }) => void
}

export interface SessionAccess {
  id: string
  /** Without `/v1` or similar; the path of an API follows it. */
  baseUrl: string
  key: string
}

export interface GatewayStatus {
  paused: boolean
  inFlight: number
  sessions: number
  weightVersion: string | undefined
}

/** Control of a gateway of one or several processes, for trainers and nodes. */
export interface GatewayControl {
  openSession(options?: SessionOptions): Promise<SessionAccess>
  /** Invalidates the key. Resolves with the failure that made the log incomplete; undefined when it is complete. */
  closeSession(id: string): Promise<Failure | undefined>
  /** Delays new calls until `resume`. Resolves with whether the calls in flight ended within the timeout. */
  pause(drainTimeoutMs: number): Promise<boolean>
  resume(): Promise<void>
  /** Sets the version of the weights that the engine samples with. Call it while the engine samples nothing or is paused. */
  setWeightVersion(version: string): Promise<void>
  status(): Promise<GatewayStatus>
  metrics(): Promise<Record<string, number>[]>
}

/** A listening data plane. Owns its sessions and their logs; the caller owns the upstream and the store. */
export class Gateway implements GatewayControl, AsyncDisposable {
  readonly #server: Server
  readonly #sessions: Sessions
  readonly #gate = new Gate()
  readonly #weights = new WeightHistory()
  readonly #metrics = new Metrics()
  readonly #quirks: readonly QuirkRule[]
  readonly #origin: Readonly<Record<string, unknown>>
  /** Whether sessions continue tokens, and why not. */
  readonly #continuation: () => ContinuationState & { mode: ContinuationMode }
  /** Connections that may only use one session, independent of their key. */
  readonly #bound = new WeakMap<Socket, string>()
  /** Number of open bound connections by session. */
  readonly #connections = new Map<string, number>()
  #url = ''

  private constructor(options: GatewayOptions) {
    const { store, ids, now, upstream, logger } = options
    this.#quirks = options.quirks ?? []
    this.#origin = { ...options.origin, ...(this.#quirks.length === 0 ? {} : { quirks: this.#quirks }) }
    const mode = options.continuation ?? 'template'
    this.#continuation = () => ({ mode, ...continuationOf(upstream.capabilities, mode) })
    this.#sessions = new Sessions({
      store,
      ids,
      now,
      monotonic: options.monotonic ?? (() => performance.now()),
      continuation: mode,
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
      sessionCalls: options.sessionCalls ?? SESSION_CALLS,
      onTurnEnd: options.onTurnEnd,
      onBusy: options.onBusy,
    })
    // No time limit for a whole request: an answer takes as long as the engine does.
    const timeouts = { requestTimeout: 0, headersTimeout: 60_000, keepAliveTimeout: 65_000 }
    this.#server = createServer({ ...timeouts, noDelay: true }, app).on('upgrade', rejectUpgrade)
    scopeConnections(this.#server)
    // For example, no file descriptor is left for a connection.
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
    const origin = { ...options.origin, ...this.#origin, continuation: this.#continuation() }
    const { session, key } = await this.#sessions.open({ ...options, origin })
    return { id: session.id, baseUrl: `${this.url}/s/${session.id}`, key }
  }

  closeSession(id: string): Promise<Failure | undefined> {
    return this.#sessions.close(id)
  }

  /**
   * Serves a connection from the socket of a session's sandbox. The connection cannot use other sessions, even with their
   * keys. Connections over the limit of a session are closed.
   */
  accept(sessionId: string, socket: Socket): void {
    const count = this.#connections.get(sessionId) ?? 0
    if (count >= MAX_SESSION_CONNECTIONS) return void socket.destroy()
    this.#connections.set(sessionId, count + 1)
    socket.once('close', () => this.#forgetConnection(sessionId))
    this.#bound.set(socket, sessionId)
    this.#server.emit('connection', socket)
    // Sockets that were passed from another process are paused.
    socket.resume()
  }

  /** Ends all calls in flight, as if their harnesses had closed them. */
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
    this.#weights.set(version)
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

/** Limits the file descriptors that a hostile program can use. */
const MAX_SESSION_CONNECTIONS = 512

async function listen(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      reject(new RolloutError('config.invalid', `Cannot listen on ${host}:${port} (${error.code}).`, { cause: error }))
    })
    server.listen(port, host, resolve)
  })
}
