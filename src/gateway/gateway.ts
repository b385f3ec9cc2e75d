import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Logger } from 'pino'
import { RolloutError, type Failure } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { SessionStore } from '../store/store.ts'
import { createApp } from './app.ts'
import { Gate } from './gate.ts'
import { dialects } from './dialects/index.ts'
import { DEFAULT_LIMITS, type BodyLimits } from './read-body.ts'
import { Sessions } from './sessions.ts'
import type { Upstream } from './upstreams/upstream.ts'

export interface GatewayOptions {
  upstream: Upstream
  store: SessionStore
  ids: IdSource
  now: () => number
  logger: Logger
  /** Loopback by default: whoever reaches the data plane and has a key can spend GPU time. */
  host?: string
  /** 0 takes a free one. */
  port?: number
  limits?: Partial<BodyLimits>
}

/** What a harness needs to be given. */
export interface SessionAccess {
  id: string
  /** Without `/v1` or the like; each API's path follows it. */
  baseUrl: string
  key: string
}

/** A listening data plane. Owns its sessions and their logs; the upstream and the store belong to the caller. */
export class Gateway implements AsyncDisposable {
  readonly #server: Server
  readonly #sessions: Sessions
  readonly url: string

  private constructor(server: Server, sessions: Sessions, url: string) {
    this.#server = server
    this.#sessions = sessions
    this.url = url
  }

  static async start(options: GatewayOptions): Promise<Gateway> {
    const { store, ids, now, upstream, logger } = options
    const sessions = new Sessions({ store, ids, now })
    const limits = { ...DEFAULT_LIMITS, ...options.limits }
    const app = createApp({ upstream, gate: new Gate(), ids, now, logger, sessions, dialects, limits })
    // No limit on the time of a whole request: an answer takes as long as the engine does.
    const server = createServer(
      { requestTimeout: 0, headersTimeout: 60_000, keepAliveTimeout: 65_000, noDelay: true },
      app,
    )
    const host = options.host ?? '127.0.0.1'
    await listen(server, host, options.port ?? 0)
    const { port } = server.address() as AddressInfo
    return new Gateway(server, sessions, `http://${host.includes(':') ? `[${host}]` : host}:${port}`)
  }

  async openSession(options: { id?: string; origin?: Readonly<Record<string, unknown>> } = {}): Promise<SessionAccess> {
    const { session, key } = await this.#sessions.open(options)
    return { id: session.id, baseUrl: `${this.url}/s/${session.id}`, key }
  }

  /** From here on its key is refused. Gives what kept the log from being whole; undefined when nothing did. */
  closeSession(id: string): Promise<Failure | undefined> {
    return this.#sessions.close(id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.#server.closeIdleConnections()
    await this.#sessions.closeAll()
    this.#server.closeAllConnections()
    await closed
  }
}

async function listen(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      reject(new RolloutError('config.invalid', `Cannot listen on ${host}:${port} (${error.code}).`, { cause: error }))
    })
    server.listen(port, host, resolve)
  })
}
