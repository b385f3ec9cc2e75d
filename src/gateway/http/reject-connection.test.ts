import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { rejectConnection } from './reject-connection.ts'

test('rejectConnection() sends a 503 that clients of every API understand, without reading the request', async () => {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, rejectConnection).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
  socket.write(`POST /v1/messages HTTP/1.1\r\ncontent-length: 3000000\r\n\r\n${'x'.repeat(3_000_000)}`)
  let text = ''
  for await (const piece of socket.setEncoding('utf8')) text += piece
  const [head, body] = text.split('\r\n\r\n') as [string, string]
  expect(head).toMatch(/^HTTP\/1\.1 503 Service Unavailable\r\n/)
  expect(head).toContain('retry-after: 1')
  const message = 'The gateway is restarting. Retry the request.'
  expect(JSON.parse(body)).toEqual({
    type: 'error',
    error: { type: 'overloaded_error', message, code: 503, status: 'UNAVAILABLE' },
  })
  server.close()
})
