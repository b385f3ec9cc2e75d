import { randomBytes } from 'node:crypto'
import { request as requestHttp, type IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { Duplex } from 'node:stream'
import type { Agent, Dispatcher } from 'undici'
import * as z from 'zod'
import { describeError } from '../../../../lib/fs/errno.ts'
import { parseJson } from '../../../../lib/json/json-text.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { ClusterAccess } from './access.ts'
import { undici } from '../../../../lib/net/undici.ts'

/** Longest wait for a response. */
const ANSWER_MS = 60_000
const CONNECTIONS = 64
/**
 * Supported by all servers. Version 5 only adds closing the input; everything we send is preceded by its length
 * instead.
 */
const PROTOCOL = 'v4.channel.k8s.io'

const Status = z.looseObject({ message: z.string().optional(), reason: z.string().optional() })

export interface ClusterCall {
  query?: Readonly<Record<string, string>>
  json?: unknown
  /** Content type of the body; absent: application/json. */
  type?: string
  signal?: AbortSignal
}

/**
 * Client of the API server for the dozen calls that we use: pods, exec, network policies. The official client does the
 * same over the same HTTP and brings about sixty packages; its WebSocket has no back-pressure, so a command with much
 * output would fill our memory.
 */
export class Cluster implements AsyncDisposable {
  readonly access: ClusterAccess
  readonly #agent: Agent

  constructor(access: ClusterAccess) {
    this.access = access
    this.#agent = new (undici().Agent)({
      connect: access.tls,
      connections: CONNECTIONS,
      headersTimeout: ANSWER_MS,
      bodyTimeout: ANSWER_MS,
    })
  }

  /** Returns the JSON of the response. Throws ClusterError for a status from 400. */
  async call(method: Dispatcher.HttpMethod, path: string, call: ClusterCall = {}): Promise<unknown> {
    const { json, type = 'application/json', query, signal } = call
    let status: number
    let text: string
    try {
      const { statusCode, body } = await this.#agent.request({
        origin: this.access.server.origin,
        path: this.#path(path, query),
        method,
        headers: {
          accept: 'application/json',
          ...(json !== undefined && { 'content-type': type }),
          ...(await this.#authorization()),
        },
        body: json === undefined ? null : JSON.stringify(json),
        signal,
      })
      status = statusCode
      text = await body.text()
    } catch (error) {
      signal?.throwIfAborted()
      throw this.#unreachable(error)
    }
    if (status >= 400) throw new ClusterError(status, text)
    return text === '' ? undefined : (parseJson(text) ?? text)
  }

  /** Returns the connection of a WebSocket after the server has accepted it. */
  async upgrade(path: string, query: readonly (readonly [string, string])[], signal?: AbortSignal): Promise<Duplex> {
    const { server, tls } = this.access
    const authorization = await this.#authorization()
    signal?.throwIfAborted()
    const options = {
      host: server.hostname.replaceAll(/[[\]]/g, ''),
      port: server.port === '' ? undefined : Number(server.port),
      path: this.#path(path, query),
      agent: false as const,
      signal,
      headers: {
        host: server.host,
        connection: 'Upgrade',
        upgrade: 'websocket',
        'sec-websocket-version': '13',
        'sec-websocket-key': randomBytes(16).toString('base64'),
        'sec-websocket-protocol': PROTOCOL,
        ...authorization,
      },
    }
    return new Promise((resolve, reject) => {
      const call = server.protocol === 'https:' ? requestHttps({ ...options, ...tls }) : requestHttp(options)
      call.setTimeout(ANSWER_MS, () => call.destroy(new Error('no response in time')))
      call.once('upgrade', (answer: IncomingMessage, socket: Duplex, head: Buffer) => {
        call.setTimeout(0)
        if (answer.headers['sec-websocket-protocol'] !== PROTOCOL) {
          socket.destroy()
          return reject(new ClusterError(500, 'The server does not support exec over WebSockets'))
        }
        if (head.length > 0) socket.unshift(head)
        resolve(socket)
      })
      call.once('response', (answer) => {
        const chunks: Buffer[] = []
        answer.on('data', (chunk: Buffer) => chunks.push(chunk)).on('error', () => {})
        answer.once('close', () => reject(new ClusterError(answer.statusCode ?? 500, Buffer.concat(chunks).toString())))
      })
      call.once('error', (error) => reject(signal?.aborted === true ? error : this.#unreachable(error)))
      call.end()
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.destroy()
  }

  #path(
    path: string,
    query: Readonly<Record<string, string>> | readonly (readonly [string, string])[] | undefined,
  ): string {
    const pairs = Array.isArray(query) ? (query as [string, string][]) : Object.entries(query ?? {})
    const text = new URLSearchParams(pairs).toString()
    return `${this.access.server.pathname.replace(/\/$/, '')}${path}${text === '' ? '' : `?${text}`}`
  }

  async #authorization(): Promise<{ authorization?: string }> {
    const token = await this.access.token()
    return token === undefined ? {} : { authorization: `Bearer ${token}` }
  }

  #unreachable(cause: unknown): RolloutError {
    if (cause instanceof RolloutError) return cause
    const { origin } = this.access.server
    return new RolloutError(
      'runtime.unavailable',
      `Cannot reach the Kubernetes API at ${origin}: ${describeError(cause)}`,
      { cause },
    )
  }
}

/** An error response of the API server. */
export class ClusterError extends Error {
  override readonly name = 'ClusterError'
  readonly status: number
  /** A reason such as `AlreadyExists`; undefined if the server sent none. */
  readonly reason: string | undefined

  constructor(status: number, body: string) {
    const parsed = Status.safeParse(parseJson(body)).data
    super(parsed?.message ?? `${status} ${body.trim().slice(0, 2000)}`)
    this.status = status
    this.reason = parsed?.reason
  }
}

/** Ignores status 404. */
export function ignoreMissing(error: unknown): undefined {
  if (error instanceof ClusterError && error.status === 404) return undefined
  throw error
}
