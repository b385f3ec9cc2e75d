/** An engine that reads every body and sends the same answer, so that only the gateway is tested. Prints its URL. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const USAGE = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 }
const HEAD = { id: 'c', created: 1, model: 'stub' }

const server = createServer((request, response) => {
  let wantsStream = false
  request.on('error', () => response.destroy())
  request.on('data', (piece: Buffer) => (wantsStream ||= piece.includes('"stream":true')))
  request.on('end', () => {
    if (request.url === '/v1/models') return void response.end(JSON.stringify({ data: [{ id: 'stub' }] }))
    if (!request.url?.endsWith('/chat/completions')) return void response.writeHead(404).end('{}')
    if (wantsStream) {
      const delta = { delta: { role: 'assistant', content: 'ok' }, index: 0, finish_reason: null }
      const last = { delta: {}, index: 0, finish_reason: 'stop' }
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      for (const choice of [delta, last]) {
        response.write(`data: ${JSON.stringify({ ...HEAD, object: 'chat.completion.chunk', choices: [choice] })}\n\n`)
      }
      response.write(
        `data: ${JSON.stringify({ ...HEAD, object: 'chat.completion.chunk', choices: [], usage: USAGE })}\n\n`,
      )
      return void response.end('data: [DONE]\n\n')
    }
    const choice = { index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'ok' } }
    response.writeHead(200, { 'content-type': 'application/json' })
    return void response.end(JSON.stringify({ ...HEAD, object: 'chat.completion', choices: [choice], usage: USAGE }))
  })
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
