/** A minimal proxy in this runtime: node:http in, undici out, bytes relayed without reading or storing them. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Pool, type Dispatcher } from 'undici'
import { serveParent } from './child.ts'
import { createLagMeter } from './lag.ts'

const pool = new Pool(process.argv[2] ?? '', { connections: 1024, pipelining: 1 })
const lag = createLagMeter()

const server = createServer({ requestTimeout: 0, keepAliveTimeout: 60_000, noDelay: true }, (request, response) => {
  const pieces: Buffer[] = []
  request.on('data', (piece: Buffer) => pieces.push(piece))
  request.on('end', () => forward(request, response, pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces)))
})
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', 4096, resolve))
serveParent({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }, { answer: async () => lag.take() })

function forward(request: IncomingMessage, response: ServerResponse, body: Buffer): void {
  const { 'content-type': contentType = 'application/json', accept = '*/*' } = request.headers
  pool.dispatch(
    { path: request.url ?? '/', method: 'POST', headers: { 'content-type': contentType, accept }, body },
    relayTo(response),
  )
}

function relayTo(response: ServerResponse): Dispatcher.DispatchHandler {
  return {
    onRequestStart(controller) {
      response.on('drain', () => controller.resume())
      response.once('close', () => {
        if (!response.writableFinished) controller.abort(new Error('caller gone'))
      })
    },
    onResponseStart(_controller, status, headers) {
      const kept = ['content-type', 'content-length'].flatMap((name) => {
        const value = headers[name]
        return typeof value === 'string' ? [name, value] : []
      })
      response.writeHead(status, kept)
    },
    onResponseData(controller, chunk) {
      if (!response.write(chunk)) controller.pause()
    },
    onResponseEnd() {
      response.end()
    },
    onResponseError() {
      response.destroy()
    },
  }
}
