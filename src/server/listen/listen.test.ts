import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { createServer, request as httpRequest } from 'node:http'
import { Agent, request as httpsRequest } from 'node:https'
import { connect as netConnect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect as tlsConnect } from 'node:tls'
import { Hono } from 'hono'
import { streamSSE } from 'hono/streaming'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { listen, type Listener, type ListenLimits } from './listen.ts'

let listener: Listener | undefined
const sockets: Socket[] = []
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy()
  await listener?.close()
  listener = undefined
})

/** State of a request on the server; the test opens `gate`. */
function makeApp() {
  const gate = Promise.withResolvers<void>()
  const arrived = Promise.withResolvers<void>()
  const aborted = Promise.withResolvers<void>()
  const waiting = { count: 0 }
  const app = new Hono<{ Bindings: { outgoing?: { destroy(): void } } }>()
  app.onError((_, c) => c.text('failed', 500))
  app.get('/', (c) => c.text('here'))
  app.get('/bindings', (c) => c.text(typeof c.env.outgoing?.destroy))
  app.get('/wait', async (c) => {
    waiting.count += 1
    arrived.resolve()
    await gate.promise
    return c.text('done')
  })
  app.get('/events', (c) =>
    streamSSE(c, async (stream) => {
      stream.onAbort(() => aborted.resolve())
      await stream.writeSSE({ data: 'first' })
      arrived.resolve()
      await aborted.promise
    }),
  )
  app.get('/flood', () => {
    const chunk = new Uint8Array(65_536)
    return new Response(
      new ReadableStream({ pull: (controller) => controller.enqueue(chunk), cancel: () => aborted.resolve() }),
    )
  })
  app.put('/', async (c) => {
    return c.text(String((await c.req.arrayBuffer()).byteLength))
  })
  app.put('/lazy', async (c) => {
    arrived.resolve()
    await gate.promise
    return c.text(String((await c.req.arrayBuffer()).byteLength))
  })
  return { app, gate, waiting, arrived: arrived.promise, aborted: aborted.promise }
}

async function open(limits: Partial<ListenLimits> = {}) {
  const made = makeApp()
  listener = await listen(made.app, { host: '127.0.0.1', port: 0, ...limits })
  return { ...made, url: listener.url, port: Number(new URL(listener.url).port) }
}

function dial(port: number): Socket {
  const socket = netConnect(port, '127.0.0.1')
  socket.on('error', () => {})
  sockets.push(socket)
  return socket
}

async function expectAnswers(url: string): Promise<void> {
  const response = await fetch(url, { headers: { connection: 'close' }, signal: AbortSignal.timeout(10_000) })
  expect(await response.text()).toBe('here')
}

/** Reads until the server closes the connection. */
async function readToEnd(socket: Socket): Promise<string> {
  let text = ''
  socket.on('data', (chunk) => void (text += chunk.toString()))
  // `once` of node:events would reject when the server resets a connection that the client still writes to.
  await new Promise((resolve) => socket.once('close', resolve))
  return text
}

test('listen() serves the app, which can close the connection during a response', async () => {
  const { url } = await open()
  await expectAnswers(url)
  expect(await (await fetch(`${url}/bindings`)).text()).toBe('function')
  expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
})

test('the unspecified address is shown as a loopback URL', async () => {
  listener = await listen(makeApp().app, { host: '0.0.0.0', port: 0 })
  expect(listener.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
  await expectAnswers(listener.url)
})

test('a port in use or a foreign address throws config.invalid', async () => {
  const other = createServer().listen(0, '127.0.0.1')
  await once(other, 'listening')
  const { port } = other.address() as { port: number }
  const taken = listen(makeApp().app, { host: '127.0.0.1', port })
  await expect(taken).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringMatching(/another program/),
  })
  const foreign = listen(makeApp().app, { host: '203.0.113.7', port: 0 })
  await expect(foreign).rejects.toMatchObject({ code: 'config.invalid' })
  await new Promise((closed) => other.close(closed))
})

describe('a deliberately slow client', () => {
  /** Bytes that arrive after the server closed reset the connection; the kernel then discards an answer not yet read. */
  const CLOSED = /^(?:HTTP\/1\.1 408 |$)/

  test('with incomplete headers is closed, and so is one that sends nothing', async () => {
    const { url, port } = await open({ headersTimeoutMs: 300 })
    const half = dial(port)
    half.write('GET / HTTP/1.1\r\nhost: x\r\nx-slow: ')
    const silent = dial(port)
    await expectAnswers(url)
    expect(await readToEnd(half)).toMatch(/^HTTP\/1\.1 408 /)
    if (!silent.closed) await readToEnd(silent)
    await expectAnswers(url)
  })

  test('that keeps sending headers is closed', async () => {
    const { port } = await open({ headersTimeoutMs: 400 })
    const socket = dial(port)
    socket.write('GET / HTTP/1.1\r\n')
    const drip = setInterval(() => socket.write(`x-${Math.random()}: 1\r\n`), 20)
    expect(await readToEnd(socket)).toMatch(CLOSED)
    clearInterval(drip)
  })

  test('that sends its body byte by byte is closed, while others are served', async () => {
    const { url, port } = await open({ rateWindowMs: 600, minBytesPerSecond: 1024 })
    const socket = dial(port)
    socket.write('PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n')
    const drip = setInterval(() => socket.write('x'), 50)
    const closed = readToEnd(socket)
    await expectAnswers(url)
    expect(await closed).toMatch(CLOSED)
    clearInterval(drip)
    await expectAnswers(url)
  })

  test('that does not read its response is closed', async () => {
    const { url, port, aborted } = await open({ rateWindowMs: 300, stalledReaderMs: 600 })
    const socket = dial(port)
    socket.write('GET /flood HTTP/1.1\r\nhost: x\r\n\r\n')
    socket.pause()
    await aborted
    await expectAnswers(url)
  })
})

test('a large body that arrives slowly but steadily may exceed all time limits', async () => {
  const { port } = await open({ headersTimeoutMs: 200, rateWindowMs: 200, minBytesPerSecond: 1000 })
  const socket = dial(port)
  const parts = 20
  socket.write(`PUT / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: ${parts * 1000}\r\n\r\n`)
  for (let part = 0; part < parts; part++) {
    await new Promise((later) => setTimeout(later, 50))
    socket.write(Buffer.alloc(1000))
  }
  expect(await readToEnd(socket)).toMatch(/20000$/)
})

test('a body that the server does not read yet does not count as slow', async () => {
  const { url, gate, arrived } = await open({ rateWindowMs: 150, minBytesPerSecond: 2 ** 20 })
  const sent = fetch(`${url}/lazy`, { method: 'PUT', body: new Uint8Array(8 * 2 ** 20) })
  await arrived
  await new Promise((later) => setTimeout(later, 800))
  gate.resolve()
  expect(await (await sent).text()).toBe(String(8 * 2 ** 20))
})

test('too large headers are refused', async () => {
  const { url, port } = await open({ maxHeaderBytes: 8192 })
  const socket = dial(port)
  socket.write(`GET / HTTP/1.1\r\nhost: x\r\nx-much: ${'x'.repeat(20_000)}\r\n\r\n`)
  expect(await readToEnd(socket)).toMatch(/^HTTP\/1\.1 431 /)
  const many = dial(port)
  many.write(`GET / HTTP/1.1\r\nhost: x\r\n${'a: b\r\n'.repeat(5000)}\r\n`)
  expect(await readToEnd(many)).toMatch(/^HTTP\/1\.1 431 /)
  await expectAnswers(url)
})

test('input that is not HTTP is refused', async () => {
  const { url, port } = await open()
  for (const text of [
    '\0\0\0\0\r\n\r\n',
    'GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  ]) {
    const socket = dial(port)
    socket.write(text)
    expect(await readToEnd(socket)).toMatch(/^HTTP\/1\.1 4|^$/)
  }
  await expectAnswers(url)
})

test('thousands of idle connections do not block new ones', async () => {
  const { url, port, arrived, gate } = await open({ maxConnections: 200 })
  const atWork = fetch(`${url}/wait`)
  await arrived
  const idle: Socket[] = []
  while (idle.length < 2000) {
    const some = Array.from({ length: 100 }, () => dial(port).resume())
    await Promise.all(some.map((socket) => once(socket, 'connect')))
    idle.push(...some)
  }
  for (const socket of idle.slice(0, 1000)) socket.write('GET / HTTP/1.1\r\n')
  for (let i = 0; i < 20; i++) await expectAnswers(url)
  const left = (): number => idle.filter((socket) => !socket.closed).length
  await expect.poll(left, { timeout: 30_000 }).toBeLessThanOrEqual(200)
  // The busy connection was not closed.
  gate.resolve()
  expect(await (await atWork).text()).toBe('done')
})

test('when all connections are busy a new one is closed, and the others continue', async () => {
  const { url, port, gate, waiting } = await open({ maxConnections: 3 })
  const calls = Array.from({ length: 3 }, () => fetch(`${url}/wait`))
  await expect.poll(() => waiting.count, { timeout: 10_000 }).toBe(3)
  const further = dial(port)
  await readToEnd(further)
  gate.resolve()
  for (const call of calls) expect(await (await call).text()).toBe('done')
})

describe('close()', () => {
  test('finishes open responses and accepts no new connections', async () => {
    const { url, gate, arrived } = await open()
    const call = fetch(`${url}/wait`)
    await arrived
    const closed = listener!.close()
    await expect
      .poll(() =>
        fetch(url).then(
          () => 'answered',
          () => 'refused',
        ),
      )
      .toBe('refused')
    gate.resolve()
    const response = await call
    expect(response.headers.get('connection')).toBe('close')
    expect(await response.text()).toBe('done')
    await closed
  })

  test('ends event streams properly, at once', async () => {
    const { url, arrived, aborted } = await open({ graceMs: 60_000 })
    const response = await fetch(`${url}/events`)
    await arrived
    await listener!.close()
    expect(await response.text()).toBe('data: first\n\n')
    await aborted
  })

  test('closes connections that do not end within the grace time', async () => {
    const { url, arrived, gate } = await open({ graceMs: 100 })
    const call = fetch(`${url}/wait`).then(
      () => 'answered',
      () => 'cut',
    )
    await arrived
    await listener!.close()
    expect(await call).toBe('cut')
    gate.resolve()
  })

  test('does not wait for idle connections or incomplete requests', async () => {
    const { url, port } = await open({ graceMs: 60_000 })
    dial(port)
    dial(port).write('GET / HT')
    const kept = httpRequest(url, { agent: undefined }).end()
    await once(kept, 'response')
    const begun = performance.now()
    await listener!.close()
    expect(performance.now() - begun).toBeLessThan(5000)
  })
})

describe('TLS', () => {
  let dir: string
  let files: { certFile: string; keyFile: string }
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'polar-tls-'))
    files = { certFile: join(dir, 'cert.pem'), keyFile: join(dir, 'key.pem') }
    makeCertificate(files.certFile, files.keyFile)
  })
  afterAll(() => rm(dir, { recursive: true, force: true }))

  function makeCertificate(certFile: string, keyFile: string): void {
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1']
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', keyFile]
    execFileSync('openssl', ['req', '-x509', ...key, '-out', certFile, '-days', '30', ...subject], { stdio: 'pipe' })
  }

  async function openTls(limits: Partial<ListenLimits> = {}) {
    const made = makeApp()
    listener = await listen(made.app, { host: '127.0.0.1', port: 0, tls: files, ...limits })
    return { ...made, url: listener.url, port: Number(new URL(listener.url).port) }
  }

  /** Request of a client that verifies the certificate. */
  async function get(url: string): Promise<string> {
    const { readFileSync } = await import('node:fs')
    const agent = new Agent({ ca: readFileSync(files.certFile) })
    const request = httpsRequest(url, { agent }).end()
    const [response] = (await once(request, 'response')) as [AsyncIterable<Buffer>]
    return Buffer.concat(await Array.fromAsync(response)).toString()
  }

  test('clients that verify the certificate are served', async () => {
    const { url } = await openTls()
    expect(url).toMatch(/^https:/)
    expect(await get(url)).toBe('here')
    await expect(fetch(url)).rejects.toThrow()
  })

  test('versions before 1.2 are refused', async () => {
    const { port } = await openTls()
    const old = tlsConnect({
      port,
      host: '127.0.0.1',
      rejectUnauthorized: false,
      maxVersion: 'TLSv1.1',
      minVersion: 'TLSv1',
      ciphers: 'DEFAULT@SECLEVEL=0',
    })
    await expect(once(old, 'secureConnect')).rejects.toThrow()
    const current = tlsConnect({ port, host: '127.0.0.1', rejectUnauthorized: false, maxVersion: 'TLSv1.2' })
    await once(current, 'secureConnect')
    expect(current.getProtocol()).toBe('TLSv1.2')
    current.destroy()
  })

  test('unfinished handshakes and plain HTTP are closed', async () => {
    const { url, port } = await openTls({ headersTimeoutMs: 300 })
    const silent = dial(port)
    const plain = dial(port)
    plain.write('GET / HTTP/1.1\r\nhost: x\r\n\r\n')
    expect(await readToEnd(plain)).not.toContain('here')
    if (!silent.closed) await readToEnd(silent)
    expect(await get(url)).toBe('here')
  })

  test('limits and close() apply with TLS too', async () => {
    const { url, port, arrived, gate } = await openTls({ maxConnections: 5, rateWindowMs: 300, graceMs: 60_000 })
    const idle = Array.from({ length: 20 }, () => {
      const socket = tlsConnect({ port, host: '127.0.0.1', rejectUnauthorized: false })
      socket.on('error', () => {})
      sockets.push(socket)
      return socket
    })
    await Promise.all(idle.map((socket) => once(socket, 'secureConnect').catch(() => {})))
    expect(await get(url)).toBe('here')
    const slow = tlsConnect({ port, host: '127.0.0.1', rejectUnauthorized: false })
    sockets.push(slow)
    slow.write('PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n')
    expect(await readToEnd(slow)).toMatch(/^HTTP\/1\.1 408 /)
    const call = get(`${url}/wait`)
    await arrived
    const closed = listener!.close()
    gate.resolve()
    expect(await call).toBe('done')
    await closed
  })

  test('invalid files are reported with what to do', async () => {
    const app = makeApp().app
    const start = (tls: { certFile: string; keyFile: string }) => listen(app, { host: '127.0.0.1', port: 0, tls })
    const failing = async (tls: { certFile: string; keyFile: string }, message: RegExp) => {
      await expect(start(tls)).rejects.toMatchObject({
        code: 'config.invalid',
        message: expect.stringMatching(message),
      })
    }
    await failing({ ...files, certFile: join(dir, 'none.pem') }, /none\.pem cannot be read: no such file/)
    await failing({ ...files, keyFile: dir }, /cannot be read: it is a directory/)

    const junk = join(dir, 'junk.pem')
    await writeFile(junk, 'not a key', { mode: 0o600 })
    await failing({ ...files, keyFile: junk }, /not a certificate and its key in PEM/)

    const [otherCert, otherKey] = [join(dir, 'other-cert.pem'), join(dir, 'other-key.pem')]
    makeCertificate(otherCert, otherKey)
    await failing({ certFile: files.certFile, keyFile: otherKey }, /not a certificate and its key/)

    await chmod(otherKey, 0o644)
    await failing({ certFile: otherCert, keyFile: otherKey }, /readable or writable by every user.*chmod 600/)
    const link = join(dir, 'link.pem')
    await symlink(otherKey, link)
    await failing({ certFile: otherCert, keyFile: link }, /every user/)
    await chmod(otherKey, 0o640)
    await (await start({ certFile: otherCert, keyFile: link })).close()

    const request = join(dir, 'request.pem')
    const sign = ['-signkey', files.keyFile, '-days', '-1', '-out', otherCert]
    execFileSync('openssl', ['req', '-new', '-key', files.keyFile, '-out', request, '-subj', '/CN=localhost'])
    execFileSync('openssl', ['x509', '-req', '-in', request, ...sign], { stdio: 'pipe' })
    await failing({ certFile: otherCert, keyFile: files.keyFile }, /expired on/)
  })
})
