import { request } from 'node:http'
import type { Duplex, Readable } from 'node:stream'
import { Agent, type Dispatcher } from 'undici'
import { describeError } from '../../../../lib/fs/errno.ts'
import { RolloutError } from '../../../../model/failure.ts'

/** Of Docker 20.10 and Podman 4; later ones still speak it. */
const API = '/v1.41'
/** Longest silence before an answer: a container's start on a busy machine, a commit of a large one. */
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
 * A Docker ContainerEngine API on a unix socket: Docker's own or Podman's. We use about fifteen calls of it, so this is all there is
 * to the client; dockerode does the same over the same HTTP and brings 66 packages (19 MB), gRPC and SSH among them.
 */
export class ContainerEngine implements AsyncDisposable {
  readonly #socketPath: string
  #agent: Agent

  constructor(socketPath: string) {
    this.#socketPath = socketPath
    this.#agent = this.#createAgent()
  }

  /** The answer's JSON; undefined when it is empty. Throws ContainerEngineError for a status from 400. */
  async call(method: Dispatcher.HttpMethod, path: string, call: ContainerEngineCall = {}): Promise<unknown> {
    const { body } = await this.open(method, path, call)
    const text = await body.text()
    try {
      return text === '' ? undefined : JSON.parse(text)
    } catch {
      return text
    }
  }

  /** The answer as it comes; whoever calls reads its body to the end, or destroys it. */
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
    // Whoever has had enough destroys it, which is no failure.
    answer.body.on('error', () => {})
    if (answer.statusCode < 400) return answer
    throw new ContainerEngineError(answer.statusCode, messageOf(await answer.body.text()))
  }

  /** For `exec`: the connection itself, both ways, once the engine has agreed to stop speaking HTTP on it. */
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

  /** Lets go of all connections; a later call makes new ones. */
  async [Symbol.asyncDispose](): Promise<void> {
    const agent = this.#agent
    this.#agent = this.#createAgent()
    await agent.destroy()
  }

  #createAgent(): Agent {
    return new Agent({
      connect: { socketPath: this.#socketPath },
      connections: CONNECTIONS,
      headersTimeout: ANSWER_MS,
      // A container's files come as fast as its disk, a pulled image's progress as it pleases.
      bodyTimeout: ANSWER_MS,
    })
  }

  #unreachable(cause: unknown): RolloutError {
    const reason = describeError(cause)
    const advice = 'start it, or set runtime.socket to where it listens'
    return new RolloutError('runtime.unavailable', `No container engine at ${this.#socketPath}: ${reason}; ${advice}`, {
      cause,
    })
  }
}

/** What the engine itself refused. */
export class ContainerEngineError extends Error {
  override readonly name = 'ContainerEngineError'
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

/** Lets a missing thing be: what was to be removed is gone, what was to be stopped has stopped. */
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
  try {
    const { message, cause } = JSON.parse(body) as { message?: unknown; cause?: unknown }
    if (typeof message === 'string') return message
    if (typeof cause === 'string') return cause
  } catch {
    // Not JSON: the text itself is the message.
  }
  return body.trim().slice(0, 2000)
}
