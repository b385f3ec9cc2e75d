import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, expect, test } from 'vitest'

const program = join(import.meta.dirname, '../support/throwing-process.ts')

interface LogLine {
  pid: number
  msg: string
  origin?: string
  hasEnded?: boolean
  err?: { message: string; stack: string }
}

let dir: string
let child: ChildProcess
let ports: Record<'server' | 'gateway' | 'door' | 'proxy', number>
const lines: LogLine[] = []

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-uncaught-'))
  child = spawn(process.execPath, [program, dir], { stdio: ['ignore', 'pipe', 'pipe'] })
  createInterface({ input: child.stderr! }).on('line', (line) => {
    if (line.startsWith('{')) lines.push(JSON.parse(line) as LogLine)
  })
  const [line] = (await once(createInterface({ input: child.stdout! }), 'line')) as [string]
  ports = JSON.parse(line) as typeof ports
})

afterAll(async () => {
  child.kill('SIGKILL')
  await rm(dir, { recursive: true, force: true })
})

/** Returns all data received until the connection closes, with or without an error. */
async function send(port: number, text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  let received = ''
  socket.setEncoding('latin1').on('data', (piece: string) => (received += piece))
  socket.on('error', () => {})
  socket.write(text)
  await closed(socket)
  return received
}

/** Opens a connection and resets it in the middle of a request. */
async function reset(port: number): Promise<void> {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  await once(socket, 'connect')
  await new Promise((written) =>
    socket.write('POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 9\r\n\r\n', written),
  )
  socket.resetAndDestroy()
  await closed(socket)
}

function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()))
}

const HTTP = {
  request: 'GET http://allowed.example/v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n',
  upgrade: 'GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n',
  connect: 'CONNECT x:99999 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n',
  clientError: 'NONSENSE\r\n\r\n',
}

function thrown(): string[] {
  return lines.flatMap(({ err }) => err?.message ?? []).filter((message) => message.startsWith('thrown'))
}

test('exceptions in listeners of server, proxy, sandbox socket and gateway do not end the processes', async () => {
  const pid = child.pid!
  for (const port of Object.values(ports)) {
    // Each kind three times: the first connections of a sandbox socket and of its server already end with an error.
    for (const text of Object.values(HTTP).flatMap((one) => [one, one, one])) await send(port, text)
    await reset(port)
  }
  for (const kind of ['connection', 'request', 'upgrade', 'connect', 'clientError'])
    await expect.poll(() => thrown()).toContain(`thrown by server ${kind}`)
  for (const kind of ['error', 'close']) await expect.poll(() => thrown()).toContain(`thrown by socket ${kind}`)
  // From the server, from the proxy, and from the gateway in its own process.
  await expect
    .poll(() => lines.filter(({ err }) => err?.message === 'thrown by server request').length)
    .toBeGreaterThan(2)
  expect(lines.map(({ msg }) => msg)).not.toContain('gateway process exited; restarting it')
  expect(await send(ports.server, HTTP.request)).toMatch(/^HTTP\/1\.1 200 .*served/s)
  for (const port of [ports.gateway, ports.door])
    expect(await send(port, 'GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n')).toMatch(
      /^HTTP\/1\.1 401 /,
    )
  expect(await send(ports.proxy, 'CONNECT other.example:443 HTTP/1.1\r\nhost: x\r\n\r\n')).toMatch(/^HTTP\/1\.1 403 /)
  expect(child.exitCode).toBeNull()
  expect(readFileSync(`/proc/${pid}/stat`, 'utf8')).not.toBe('')
})

test('an exception after the listener has returned closes its connection; other connections stay open', async () => {
  const other = connect(ports.server, '127.0.0.1')
  await once(other, 'connect')
  expect(await send(ports.server, 'GET /late HTTP/1.1\r\nhost: x\r\n\r\n')).toBe('')
  await expect
    .poll(() => lines.find(({ err }) => err?.message === 'thrown late'))
    .toMatchObject({
      hasEnded: true,
      origin: 'uncaughtException',
      err: { stack: expect.stringContaining('throwing-process.ts') },
    })
  other.write('GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n')
  const [answer] = (await once(other.setEncoding('latin1'), 'data')) as [string]
  expect(answer).toMatch(/^HTTP\/1\.1 200 /)
  other.destroy()
})

test('an unhandled rejection is logged with its stack', async () => {
  await expect
    .poll(() => lines.find(({ err }) => err?.message === 'rejected'))
    .toMatchObject({
      origin: 'unhandledRejection',
      err: { stack: expect.stringContaining('throwing-process.ts') },
    })
})
