import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { rejectUpgrade } from './app.ts'

test('rejectUpgrade() answers 426 and survives clients that reset the connection', async () => {
  const server = createServer().on('upgrade', rejectUpgrade)
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const open = (): ReturnType<typeof connect> => {
    const socket = connect(port, '127.0.0.1').on('error', () => {})
    socket.write('GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n')
    return socket
  }
  // An error event without a listener is an exception of the process, which fails the test run.
  const resets = Array.from({ length: 500 }, async () => {
    const socket = open()
    await once(socket, 'connect')
    socket.resetAndDestroy()
  })
  await Promise.all(resets)
  const [answer] = (await once(open(), 'data')) as [Buffer]
  expect(String(answer)).toMatch(/^HTTP\/1\.1 426 /)
  server.closeAllConnections()
  server.close()
})
