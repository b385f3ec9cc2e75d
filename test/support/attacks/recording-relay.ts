import { once } from 'node:events'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface RecordingRelay extends AsyncDisposable {
  url: string
  /** Returns the bodies of requests to the engine that contain the words. */
  bodiesWith(words: string): Record<string, unknown>[]
  /** Returns the same bodies as text. */
  textsWith(words: string): string[]
}

/** Half of a surrogate pair in JSON: not a character, so no tokenizer can encode it. */
const HALF_SURROGATE = /\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])/i

/**
 * Proxy between a gateway and an engine that records the body of every request. Answers 500 to half a surrogate pair, like
 * engines whose tokenizer cannot encode it.
 */
export async function startRecordingRelay(engineUrl: string): Promise<RecordingRelay> {
  const texts: string[] = []
  const serve = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
    const pieces: Buffer[] = []
    for await (const piece of incoming as AsyncIterable<Buffer>) pieces.push(piece)
    const body = Buffer.concat(pieces)
    const text = body.toString('utf8')
    if (text !== '') texts.push(text)
    if (HALF_SURROGATE.test(text)) {
      response.writeHead(500, { 'content-type': 'application/json' })
      response.end('{"error":{"message":"surrogates not allowed","type":"InternalServerError","code":500}}')
      return
    }
    const { host: _, ...headers } = incoming.headers
    const onward = request(`${engineUrl}${incoming.url}`, { method: incoming.method, headers, agent: false })
    onward.on('error', () => response.destroy())
    onward.on('response', (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.on('error', () => response.destroy())
      answer.pipe(response)
    })
    response.on('close', () => onward.destroy())
    onward.end(body)
  }
  const server = createServer((incoming, response) => {
    serve(incoming, response).catch(() => response.destroy())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const textsWith = (words: string): string[] => texts.filter((text) => text.includes(words))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    textsWith,
    bodiesWith: (words) => textsWith(words).map((text) => JSON.parse(text) as Record<string, unknown>),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
