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
  /** PEM; must not be readable by everybody. */
  keyFile: string
}

export interface ListenOptions {
  /** An address or name of this machine. */
  host: string
  /** 0: any that is free. */
  port: number
  tls?: TlsFiles
}

export interface ListenLimits {
  /** From the connection, or from the first byte of a further request, to the end of the headers. */
  headersTimeoutMs: number
  /** How long a connection without a request is kept. */
  keepAliveMs: number
  /** A body that comes more slowly than this, for so long and while we wait for it, is given up. */
  minBytesPerSecond: number
  rateWindowMs: number
  /** How long a reader may take nothing of its answer. */
  stalledReaderMs: number
  maxHeaderBytes: number
  /** With more than that, those that ask for nothing are closed, the longest first. */
  maxConnections: number
  /** At `close`: how long answers under way may take. */
  graceMs: number
}

export interface Listener {
  /** As others on this machine reach it, without a slash at its end. */
  url: string
  /** Takes nothing new, lets answers end for a bounded time, then cuts. */
  close(): Promise<void>
}

interface Fetcher {
  fetch(request: Request, env: unknown): Response | Promise<Response>
}

const DEFAULTS: ListenLimits = {
  headersTimeoutMs: 15_000,
  // Longer than the usual minute of a proxy, which would otherwise send into a connection that is just being closed.
  keepAliveMs: 75_000,
  minBytesPerSecond: 1024,
  rateWindowMs: 15_000,
  stalledReaderMs: 120_000,
  maxHeaderBytes: 16 * 1024,
  maxConnections: 8192,
  graceMs: 5000,
}

/** TLS handshakes under way beyond the limit on connections, which only counts those that are through. */
const MOST_HANDSHAKES = 1024

/** After a restart all nodes come back at once; what the system does not queue of them waits for seconds. */
const BACKLOG = 4096

/** Serves the app over HTTP, to anybody who may be slow, hostile or gone. */
export async function listen(app: Fetcher, options: ListenOptions & Partial<ListenLimits>): Promise<Listener> {
  const { host, port, tls, ...given } = options
  const limits = { ...DEFAULTS, ...given }
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
    // No limit on a whole request: its speed is what counts, see connections.ts.
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
  server.maxConnections = limits.maxConnections + MOST_HANDSHAKES
  return server
}

function bind(server: Server, host: string, port: number): Promise<AddressInfo> {
  return new Promise((resolve, reject) => {
    // Stays: a connection that cannot be accepted later is an error of the server too.
    server.on('error', (error) => {
      const hint =
        errnoOf(error) === 'EADDRINUSE'
          ? 'another program listens there; stop it, or choose another port'
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
