import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { AllowProxy, isPrivateAddress } from './allow-proxy.ts'

test.each([
  '127.0.0.1',
  '10.1.2.3',
  '169.254.169.254',
  '192.168.0.1',
  '172.31.255.255',
  '100.64.0.1',
  '0.0.0.0',
  '224.0.0.1',
  '255.255.255.255',
  '::',
  '::1',
  'fe80::1',
  'fd00::1',
  '::ffff:127.0.0.1',
  '64:ff9b::7f00:1',
  'nonsense',
])('%s is not outside', (address) => {
  expect(isPrivateAddress(address)).toBe(true)
})

test.each(['1.1.1.1', '93.184.216.34', '172.32.0.1', '2606:4700::1111'])('%s is outside', (address) => {
  expect(isPrivateAddress(address)).toBe(false)
})

test('AllowProxy refuses hosts that are not named, and names that lead inside, with one look', async () => {
  const asked: string[] = []
  const proxy = new AllowProxy(['inside.example', 'mixed.example'], async (host) => {
    asked.push(host)
    return [
      { address: '1.1.1.1', family: 4 },
      { address: '10.0.0.1', family: 4 },
    ].slice(host.startsWith('mixed') ? 0 : 1)
  })
  const server = createServer((socket) => proxy.accept(socket))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const ask = async (request: string): Promise<string> => {
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
    socket.write(`${request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`)
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    socket.destroy()
    return String(chunk).split('\r\n')[0]!
  }
  for (const request of [
    'CONNECT other.example:443',
    'CONNECT inside.example:443',
    'CONNECT mixed.example:443',
    'CONNECT inside.example',
    'GET http://inside.example/latest/meta-data',
    'GET http://other.example/',
    'GET /local',
  ])
    expect(await ask(request), request).toBe('HTTP/1.1 403 Forbidden')
  expect([...new Set(asked)]).toEqual(['inside.example', 'mixed.example'])
  server.close()
})
