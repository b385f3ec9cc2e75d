import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import { expect, test } from 'vitest'
import { createCleanSpawn } from '../process/clean-spawn.ts'
import { listenInside } from './sandbox-sockets.ts'

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

test.each([
  ['as fast as this machine can', []],
  ['where there is no Perl', ['/usr/bin/env', 'PATH=/nowhere']],
])('listenInside() opens several ports, and their connections arrive in this process: %s', async (_, prefix) => {
  const ports = [await freePort(), await freePort()]
  const accepts = new Map(
    ports.map((port) => [port, { accept: (socket: Socket) => void socket.end(`door ${port}`) }] as const),
  )
  const doors = await listenInside({ spawn: createCleanSpawn(), prefix }, accepts, AbortSignal.timeout(20_000))
  expect(new Set(doors.map(({ port }) => port))).toEqual(new Set(ports))
  for (const port of ports) expect(await text(connect(port, '127.0.0.1'))).toBe(`door ${port}`)
  for (const door of doors) door.close()
  await expect(text(connect(ports[0]!, '127.0.0.1'))).rejects.toMatchObject({ code: 'ECONNREFUSED' })
})

test('listenInside() reports a port that is in use', async () => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const opening = listenInside(
    { spawn: createCleanSpawn(), prefix: [] },
    new Map([[port, { accept: () => {} }]]),
    AbortSignal.timeout(20_000),
  )
  await expect(opening).rejects.toMatchObject({
    code: 'runtime.start-failed',
    message: expect.stringContaining('EADDRINUSE'),
  })
  server.close()
})
