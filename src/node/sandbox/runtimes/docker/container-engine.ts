import { request } from 'node:http'
import type { Duplex, Readable } from 'node:stream'
import type { Agent, Dispatcher } from 'undici'
import { describeError } from '../../../../lib/fs/errno.ts'
import { parseJson, parseJsonObject } from '../../../../lib/json/json-text.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { undici } from '../../../../lib/net/undici.ts'

/** Version of Docker 20.10 and Podman 4; later versions still support it. */
const API = '/v1.41'
/** Longest wait for a response: the start of a container on a busy machine, the commit of a large container. */
const ANSWER_MS = 120_000
const CONNECTIONS = 64

export interface ContainerEngineCall {
  query?: Readonly<Record<string, string>>
  json?: unknown
  tar?: AsyncIterable<Uint8Array> | Iterable<Uint8Array>
  headers?: Readonly<Record<string, string>>
  signal?: AbortSignal
}

/**
 * Client of the Docker Engine API on a unix socket, of Docker or of Podman. We use about fifteen calls; dockerode does
 * the same over the same HTTP and brings 66 packages (19 MB), including gRPC and SSH.
 */
export class ContainerEngine implements AsyncDisposable {
  readonly #socketPath: string
  #agent: Agent

  constructor(socketPath: string) {
    this.#socketPath = socketPath
    this.#agent = this.#createAgent()
  }

  /** Returns the JSON of the response; undefined if it is empty. Throws ContainerEngineError for a status from 400. */
  async call(method: Dispatcher.HttpMethod, path: string, call: ContainerEngineCall = {}): Promise<unknown> {
    const { body } = await this.open(method, path, call)
    const text = await body.text()
    return text === '' ? undefined : (parseJson(text) ?? text)
  }

  /** Returns the response as a stream; the caller reads its body to the end or destroys it. */
  async open(
    method: Dispatcher.HttpMethod,
    path: string,
    call: ContainerEngineCall = {},
  ): Promise<Dispatcher.ResponseData> {
    const { json, tar, headers, signal } = call
    const type = tar === undefined ? 'application/json' : 'application/x-tar'
    let answer: Dispatcher.ResponseData
    try {
      answer = await this.#agent.request({
        origin: 'http://engine',
        path: withQuery(path, call.query),
        method,
        headers: { ...(json !== undefined || tar !== undefined ? { 'content-type': type } : {}), ...headers },
        body: json === undefined ? ((tar as Readable | undefined) ?? null) : JSON.stringify(json),
        signal,
      })
    } catch (error) {
      signal?.throwIfAborted()
      throw this.#unreachable(error)
    }
    // A caller may destroy the body early.
    answer.body.on('error', () => {})
    if (answer.statusCode < 400) return answer
    throw new ContainerEngineError(answer.statusCode, messageOf(await answer.body.text()))
  }

  /** For `exec`: returns the raw connection after the engine has switched from HTTP. */
  hijack(path: string, json: unknown): Promise<Duplex> {
    const body = JSON.stringify(json)
    return new Promise((resolve, reject) => {
      const call = request({
        socketPath: this.#socketPath,
        method: 'POST',
        path: withQuery(path),
        agent: false,
        headers: {
          host: 'engine',
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(body),
          connection: 'Upgrade',
          upgrade: 'tcp',
        },
      })
      call.once('upgrade', (_, socket, head) => {
        if (head.length > 0) socket.unshift(head)
        resolve(socket)
      })
      call.once('response', (answer) => {
        const chunks: Buffer[] = []
        answer.on('data', (chunk: Buffer) => chunks.push(chunk))
        answer.once('end', () =>
          reject(new ContainerEngineError(answer.statusCode ?? 500, messageOf(Buffer.concat(chunks).toString()))),
        )
      })
      call.once('error', (error) => reject(this.#unreachable(error)))
      call.end(body)
    })
  }

  /** Closes all connections; a later call opens new ones. */
  async [Symbol.asyncDispose](): Promise<void> {
    const agent = this.#agent
    this.#agent = this.#createAgent()
    await agent.destroy()
  }

  #createAgent(): Agent {
    return new (undici().Agent)({
      connect: { socketPath: this.#socketPath },
      connections: CONNECTIONS,
      headersTimeout: ANSWER_MS,
      // The progress of an image that is pulled has long pauses.
      bodyTimeout: ANSWER_MS,
    })
  }

  #unreachable(cause: unknown): RolloutError {
    const reason = describeError(cause)
    const advice = 'start it, or set runtime.socket to its socket'
    return new RolloutError(
      'runtime.unavailable',
      `Cannot reach a container engine at ${this.#socketPath}: ${reason}; ${advice}`,
      {
        cause,
      },
    )
  }
}

/** An error response of the engine. */
export class ContainerEngineError extends Error {
  override readonly name = 'ContainerEngineError'
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

/** Ignores these statuses: what is to be removed is absent, or what is to be stopped has stopped. */
export function ignoreStatus(...statuses: readonly number[]): (error: unknown) => undefined {
  return (error) => {
    if (error instanceof ContainerEngineError && statuses.includes(error.status)) return undefined
    throw error
  }
}

function withQuery(path: string, query: Readonly<Record<string, string>> = {}): string {
  const text = new URLSearchParams(query).toString()
  return `${API}${path}${text === '' ? '' : `?${text}`}`
}

function messageOf(body: string): string {
  const { message, cause } = parseJsonObject(body) ?? {}
  if (typeof message === 'string') return message
  return typeof cause === 'string' ? cause : body.trim().slice(0, 2000)
}
