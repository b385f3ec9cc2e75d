import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { expect, onTestFinished, test } from 'vitest'
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
])('%s is a private address', (address) => {
  expect(isPrivateAddress(address)).toBe(true)
})

test.each(['1.1.1.1', '93.184.216.34', '172.32.0.1', '2606:4700::1111'])('%s is a public address', (address) => {
  expect(isPrivateAddress(address)).toBe(false)
})

test('AllowProxy rejects hosts that are not allowed, and names with private addresses, with one lookup', async () => {
  const asked: string[] = []
  const proxy = new AllowProxy(['inside.example', 'mixed.example'], {
    resolve: async (host) => {
      asked.push(host)
      return [
        { address: '1.1.1.1', family: 4 },
        { address: '10.0.0.1', family: 4 },
      ].slice(host.startsWith('mixed') ? 0 : 1)
    },
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

test('AllowProxy runs one lookup per name for concurrent requests', async () => {
  const gate = Promise.withResolvers<void>()
  let underWay = 0
  let most = 0
  const proxy = new AllowProxy(['slow.example'], {
    resolve: async () => {
      underWay += 1
      most = Math.max(most, underWay)
      await gate.promise
      underWay -= 1
      return [{ address: '10.0.0.1', family: 4 }]
    },
  })
  const server = createServer((socket) => proxy.accept(socket))
  onTestFinished(() => void server.close())
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const ask = async (host: string): Promise<string> => {
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
    socket.write(`CONNECT ${host}:443 HTTP/1.1\r\nHost: x\r\n\r\n`)
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    socket.destroy()
    return String(chunk)
  }
  const answers = Array.from({ length: 50 }, (_, index) => ask(index % 2 === 0 ? 'slow.example' : 'SLOW.example'))
  // The earlier requests have been read when another name is rejected.
  await ask('other.example')
  gate.resolve()
  expect(new Set(await Promise.all(answers))).toEqual(new Set(['HTTP/1.1 403 Forbidden\r\n\r\n']))
  expect(most).toBe(1)
})

/** A proxy whose only allowed host, `peer.example`, is a raw TCP server of the test. */
async function startProxy(
  answer: (socket: Socket) => void,
): Promise<{ peerPort: number; send(bytes: string): Promise<string> }> {
  const peer = createServer((socket) => {
    socket.on('error', () => {})
    answer(socket)
  })
  await once(peer.listen(0, '127.0.0.1'), 'listening')
  const proxy = new AllowProxy(['peer.example'], {
    resolve: async () => [{ address: '127.0.0.1', family: 4 }],
    isPrivate: () => false,
  })
  const server = createServer((socket) => {
    socket.on('error', () => {})
    proxy.accept(socket)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  onTestFinished(() => {
    peer.close()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return {
    peerPort: (peer.address() as AddressInfo).port,
    /** Returns all bytes that the proxy sent until it closed the connection. */
    async send(bytes) {
      const socket = connect(port, '127.0.0.1')
      socket.on('error', () => {})
      let received = ''
      socket.setEncoding('utf8').on('data', (text: string) => (received += text))
      socket.write(bytes)
      await new Promise((resolve) => socket.once('close', resolve))
      return received
    },
  }
}

const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok'

test('AllowProxy forwards a request and its response', async () => {
  let seen = ''
  const { peerPort, send } = await startProxy((socket) =>
    socket.setEncoding('utf8').on('data', (text: string) => {
      seen += text
      if (seen.endsWith('0\r\n\r\n')) socket.end(OK)
    }),
  )
  const answer = await send(
    `POST http://peer.example:${peerPort}/x?y=1 HTTP/1.1\r\nHost: z\r\nTransfer-Encoding: chunked\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n3\r\nabc\r\n0\r\n\r\n`,
  )
  expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nok$/)
  expect(seen).toMatch(new RegExp(`^POST /x\\?y=1 HTTP/1\\.1\\r\\n`))
  expect(seen.toLowerCase()).toContain(`host: peer.example:${peerPort}\r\n`)
  expect(seen.toLowerCase()).toContain('x-end: 2\r\n')
  expect(seen.toLowerCase()).not.toContain('x-hop')
  expect(seen).toContain('3\r\nabc\r\n')
})

test.each([
  ['CONNECT to a port above 65535', () => 'CONNECT peer.example:99999 HTTP/1.1\r\nHost: x\r\n\r\n', OK],
  ['CONNECT to port 0', () => 'CONNECT peer.example:0 HTTP/1.1\r\nHost: x\r\n\r\n', OK],
  [
    'a Trailer header in a request without chunks',
    (port: number) =>
      `GET http://peer.example:${port}/ HTTP/1.1\r\nHost: x\r\nTrailer: x-sum\r\nConnection: close\r\n\r\n`,
    OK,
  ],
  [
    'a Trailer header in an answer with a length',
    get,
    'HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok',
  ],
  ['an answer with status 099', get, 'HTTP/1.1 099 Odd\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'],
  ['an answer that is not HTTP', get, 'nonsense\r\n\r\n'],
  ['an answer that switches protocols', get, 'HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'],
  [
    'a request to switch protocols',
    (port: number) =>
      `GET http://peer.example:${port}/ HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n`,
    OK,
  ],
])('AllowProxy survives %s', async (_, request, answer) => {
  const { peerPort, send } = await startProxy((socket) => socket.once('data', () => socket.end(answer)))
  await send(request(peerPort))
  // An exception in a listener would fail the test run; the proxy still serves the next connection.
  const next = await send('GET http://other.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
  expect(next).toMatch(/^HTTP\/1\.1 403 /)
})

function get(port: number): string {
  return `GET http://peer.example:${port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`
}
