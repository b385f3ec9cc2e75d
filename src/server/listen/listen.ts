import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { isIPv6 } from 'node:net'
import { getRequestListener } from '@hono/node-server'
import { describeError, errnoOf } from '../../lib/fs/errno.ts'
import { scopeConnections } from '../../lib/async/fault-scope.ts'
import { RolloutError } from '../../model/failure.ts'
import { Connections } from './connections.ts'
import { loadTls } from './tls-files.ts'

export interface TlsFiles {
  /** PEM, with the chain. */
  certFile: string
  /** PEM; must not be readable by other users. */
  keyFile: string
}

export interface ListenOptions {
  /** Address or host name of this machine. */
  host: string
  /** 0: any free port. */
  port: number
  tls?: TlsFiles
}

export interface ListenLimits {
  /** Time from the connection, or from the first byte of a further request, to the end of the headers. */
  headersTimeoutMs: number
  /** How long an idle connection is kept open. */
  keepAliveMs: number
  /** A request is rejected if its body arrives more slowly for `rateWindowMs` while the server waits for it. */
  minBytesPerSecond: number
  rateWindowMs: number
  /** How long a client may read nothing of its response. */
  stalledReaderMs: number
  maxHeaderBytes: number
  /** Beyond this number idle connections are closed, longest idle first. */
  maxConnections: number
  /** How long open responses may take after `close`. */
  graceMs: number
}

export interface Listener {
  /** Reachable from this machine, without a trailing slash. */
  url: string
  /** Accepts no new connections, waits `graceMs` for open responses, then closes all connections. */
  close(): Promise<void>
}

interface Fetcher {
  fetch(request: Request, env: unknown): Response | Promise<Response>
}

const DEFAULTS: ListenLimits = {
  headersTimeoutMs: 15_000,
  // Longer than the usual 60 s of proxies, which would otherwise send requests into closing connections.
  keepAliveMs: 75_000,
  minBytesPerSecond: 1024,
  rateWindowMs: 15_000,
  stalledReaderMs: 120_000,
  maxHeaderBytes: 16 * 1024,
  maxConnections: 8192,
  graceMs: 5000,
}

/** Unfinished TLS handshakes in addition to `maxConnections`, which counts only established connections. */
const MAX_HANDSHAKES = 1024

/** After a restart all nodes reconnect at once; connections beyond the backlog are delayed by seconds. */
const BACKLOG = 4096

/** Serves the app over HTTP to clients that may be slow, hostile or disconnected. */
export async function listen(app: Fetcher, options: ListenOptions & Partial<ListenLimits>): Promise<Listener> {
  const { host, port, tls, ...overrides } = options
  const limits = { ...DEFAULTS, ...overrides }
  const connections = new Connections(limits)
  const listener = getRequestListener(async (request, env) => {
    const response = await app.fetch(request, env)
    if (isEventStream(response)) connections.markEndless(env.outgoing as ServerResponse)
    return response
  })
  const server = await createHttpServer((incoming, outgoing) => void listener(incoming, outgoing), tls, limits)
  scopeConnections(server)
  connections.watch(server, tls === undefined ? 'connection' : 'secureConnection')
  const address = await bind(server, host, port)
  const checkMs = Math.max(Math.ceil(limits.rateWindowMs / 3), 1)
  const checks = setInterval(() => connections.check(checkMs), checkMs).unref()
  const shown = isUnspecified(host) ? (isIPv6(host) ? '::1' : '127.0.0.1') : host
  return {
    url: `${tls === undefined ? 'http' : 'https'}://${isIPv6(shown) ? `[${shown}]` : shown}:${address.port}`,
    async close() {
      clearInterval(checks)
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      connections.endSoon()
      const cut = setTimeout(() => server.closeAllConnections(), limits.graceMs)
      await closed
      clearTimeout(cut)
    },
  }
}

async function createHttpServer(
  listener: RequestListener,
  tls: TlsFiles | undefined,
  limits: ListenLimits,
): Promise<Server> {
  const settings = {
    headersTimeout: limits.headersTimeoutMs,
    // No limit on the whole request: connections.ts limits the transfer rate.
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    connectionsCheckingInterval: Math.max(Math.ceil(limits.headersTimeoutMs / 3), 1),
    maxHeaderSize: limits.maxHeaderBytes,
  }
  const server =
    tls === undefined
      ? createServer(settings, listener)
      : createTlsServer(
          {
            ...settings,
            ...(await loadTls(tls)),
            minVersion: 'TLSv1.2',
            handshakeTimeout: limits.headersTimeoutMs,
          },
          listener,
        )
  server.maxConnections = limits.maxConnections + MAX_HANDSHAKES
  return server
}

function bind(server: Server, host: string, port: number): Promise<AddressInfo> {
  return new Promise((resolve, reject) => {
    // Not removed after `listen`: the server also emits `error` when it cannot accept a connection later.
    server.on('error', (error) => {
      const hint =
        errnoOf(error) === 'EADDRINUSE'
          ? 'another program uses the port; stop it, or choose another port'
          : describeError(error)
      reject(
        new RolloutError('config.invalid', `The server cannot listen on ${host}:${port}: ${hint}.`, { cause: error }),
      )
    })
    server.listen({ port, host, backlog: BACKLOG }, () => resolve(server.address() as AddressInfo))
  })
}

function isEventStream(response: Response): boolean {
  return response.headers.get('content-type')?.startsWith('text/event-stream') ?? false
}

function isUnspecified(host: string): boolean {
  return host === '0.0.0.0' || host === '::'
}
