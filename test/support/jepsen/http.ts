import { Agent, createServer, type IncomingMessage, request as sendRequest, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** One recorded request. */
export interface WireRequest {
  method: string
  path: string
  headers: Readonly<Record<string, string | string[] | undefined>>
  body: Buffer
}

export interface WireAnswer {
  status: number
  headers: IncomingMessage['headers']
  body: Buffer
}

export interface HttpService extends AsyncDisposable {
  url: string
  /** Destroys all connections. */
  hangUp(): void
}

/** Serves complete requests; the handler writes or drops the answer. */
export async function serve(
  host: string,
  handle: (request: WireRequest, outgoing: ServerResponse) => Promise<void>,
): Promise<HttpService> {
  const server = createServer((incoming, outgoing) => {
    outgoing.on('error', () => {})
    void (async () => {
      try {
        const { method = 'GET', url = '/', headers } = incoming
        await handle({ method, path: url, headers, body: await readAll(incoming) }, outgoing)
      } catch {
        outgoing.destroy()
      }
    })()
  })
  server.keepAliveTimeout = 60_000
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, host, resolve)
  })
  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}`,
    hangUp: () => server.closeAllConnections(),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** Without keep-alive, so that faults affect single requests. */
const agent = new Agent({ keepAlive: false })

/** Rejects if no complete answer arrives. */
export function forward(baseUrl: string, request: WireRequest, signal?: AbortSignal): Promise<WireAnswer> {
  return new Promise((resolve, reject) => {
    const { host: _, connection: _connection, 'transfer-encoding': _encoding, ...given } = request.headers
    // Compressed answers could not be parsed.
    const headers = { ...given, 'accept-encoding': 'identity' }
    const outgoing = sendRequest(
      new URL(request.path, baseUrl),
      {
        agent,
        method: request.method,
        headers: { ...headers, 'content-length': request.body.length },
        ...(signal && { signal }),
      },
      (incoming) => {
        readAll(incoming).then(
          (body) => resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, body }),
          reject,
        )
      },
    )
    outgoing.on('error', reject)
    outgoing.end(request.body)
  })
}

export function give({ status, headers, body }: WireAnswer, outgoing: ServerResponse): void {
  const { connection: _, 'transfer-encoding': _encoding, 'keep-alive': _alive, ...rest } = headers
  outgoing.writeHead(status, { ...rest, 'content-length': body.length }).end(body)
}

async function readAll(incoming: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of incoming) chunks.push(chunk as Buffer)
  if (!incoming.complete) throw new Error('cut')
  return Buffer.concat(chunks)
}
