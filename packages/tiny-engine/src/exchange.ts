import type { IncomingMessage, ServerResponse } from 'node:http'
import { type EngineError, fieldErrors, httpError } from './errors.ts'
import { nestsDeeperThan } from './json-text.ts'

const MAX_BODY_BYTES = 64 * 1024 * 1024
const MAX_NESTING = 128

/** One request and its answer. */
export class Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly path: string
  readonly #query: string
  readonly #toErrorBody: (error: EngineError) => string
  /** Aborts when the client disconnects before the answer is complete. */
  readonly signal: AbortSignal
  /** The text of the body after it was read. */
  rawBody = ''

  constructor(request: IncomingMessage, response: ServerResponse, toErrorBody: (error: EngineError) => string) {
    this.#toErrorBody = toErrorBody
    this.request = request
    this.response = response
    const [path = '', query = ''] = (request.url ?? '').split('?', 2)
    this.path = path
    this.#query = query
    const gone = new AbortController()
    this.signal = gone.signal
    response.on('close', () => {
      if (!response.writableFinished) gone.abort(new Error('The client has closed the connection.'))
    })
    // Without a listener, a broken connection would end the process.
    response.on('error', () => {})
    request.on('error', () => {})
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.#query)
  }

  /** Throws the error for status 400 or 413. */
  async readJson(): Promise<unknown> {
    const bytes = await this.#readBody()
    this.rawBody = bytes.toString('utf8')
    if (nestsDeeperThan(this.rawBody, MAX_NESTING)) {
      throw httpError(400, `The body nests deeper than ${MAX_NESTING} levels.`)
    }
    try {
      return JSON.parse(this.rawBody)
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error)
      throw fieldErrors([{ path: [], type: 'json_invalid', message: `JSON decode error: ${reason}`, input: undefined }])
    }
  }

  sendJson(body: string, status = 200): void {
    this.#send(status, 'application/json', body)
  }

  sendText(body: string, type = 'text/plain; charset=utf-8', status = 200): void {
    this.#send(status, type, body)
  }

  sendError(error: EngineError): void {
    if (error.retryAfterSeconds !== undefined) this.response.setHeader('retry-after', String(error.retryAfterSeconds))
    this.#send(error.status, 'application/json', this.#toErrorBody(error))
  }

  #send(status: number, type: string, body: string): void {
    if (this.response.headersSent || this.response.destroyed) return
    // The rest of the body cannot be read any more, so the connection cannot be reused.
    if (!this.request.complete) this.response.setHeader('connection', 'close')
    this.response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body) })
    this.response.end(body)
  }

  #readBody(): Promise<Buffer> {
    const { request } = this
    if (Number(request.headers['content-length'] ?? 0) > MAX_BODY_BYTES) return Promise.reject(tooLarge())
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = []
      let length = 0
      request.on('data', (chunk: Buffer) => {
        length += chunk.length
        if (length > MAX_BODY_BYTES) {
          // Left unread, not destroyed: the answer uses the same socket.
          request.removeAllListeners('data').pause()
          reject(tooLarge())
          return
        }
        chunks.push(chunk)
      })
      request.on('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)))
      request.on('close', () => {
        if (!request.complete) reject(httpError(400, 'The connection was closed before the body was complete.'))
      })
    })
  }
}

function tooLarge(): EngineError {
  return httpError(413, `The body is larger than ${MAX_BODY_BYTES} bytes.`)
}
