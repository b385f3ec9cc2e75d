import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { Agent, request } from 'node:http'
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openEngine, type OpenEngine } from '../../src/compose/open-engine.ts'
import { openGateway } from '../../src/compose/open-gateway.ts'
import type { SessionAccess } from '../../src/gateway/gateway.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'

type Gateway = Awaited<ReturnType<typeof openGateway>>

const SCRIPT = `
scenarios:
  slow: [{ text: late, first_token_ms: 600000 }]
default: { text: fine }
`

let scratch: string
let engine: OpenEngine
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-gateway-process-'))
  const script = join(scratch, 'script.yaml')
  await writeFile(script, SCRIPT)
  engine = await openEngine({ script })
})
afterAll(async () => {
  await engine[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

interface LogLine {
  msg: string
  [field: string]: unknown
}

/** Starts a gateway process with the settings of a node, and collects its log lines. */
async function start({ heapMb, hangMs }: { heapMb?: number; hangMs?: number } = {}): Promise<
  { gateway: Gateway; lines: LogLine[] } & AsyncDisposable
> {
  const lines: LogLine[] = []
  const logger = pino({ level: 'warn' }, { write: (line: string) => void lines.push(JSON.parse(line) as LogLine) })
  const gateway = await openGateway({
    count: 1,
    settings: {
      host: '127.0.0.1',
      dir: scratch,
      durability: 'process',
      lockWaitMs: 0,
      quirks: [],
      upstream: engine.configs,
      engine: engine.info,
    },
    limits: heapMb === undefined ? {} : { heapMb },
    ...(hangMs === undefined ? {} : { hangMs }),
    logger,
  })
  return { gateway, lines, [Symbol.asyncDispose]: () => gateway[Symbol.asyncDispose]() }
}

/** A socket that the node serves inside a sandbox. Node.js reads no byte of its connections in this process. */
class SandboxSocket implements Disposable {
  readonly #server: Server
  readonly sockets: Socket[] = []

  private constructor(server: Server) {
    this.#server = server
  }

  static async open(gateway: Gateway, { id }: SessionAccess, path?: string): Promise<SandboxSocket> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true })
    const sandboxSocket = new SandboxSocket(server)
    server.on('connection', (socket) => {
      sandboxSocket.sockets.push(socket)
      gateway.accept(id, socket)
    })
    server.listen(path === undefined ? { port: 0, host: '127.0.0.1' } : { path })
    await once(server, 'listening')
    return sandboxSocket
  }

  get to(): { port: number } | { socketPath: string } {
    const address = this.#server.address() as AddressInfo | string
    return typeof address === 'string' ? { socketPath: address } : { port: address.port }
  }

  [Symbol.dispose](): void {
    this.#server.close()
    for (const socket of this.sockets) socket.destroy()
  }
}

interface Answer {
  status: number
  headers: Record<string, unknown>
  body: { choices?: { message: { content: string } }[]; error?: { message: string } }
}

function call(
  to: { port: number } | { socketPath: string },
  { id, key }: SessionAccess,
  { content = 'hello', padding = 0, agent }: { content?: string; padding?: number; agent?: Agent } = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const sent = request({
      ...to,
      host: '127.0.0.1',
      path: `/s/${id}/v1/chat/completions`,
      method: 'POST',
      headers,
      agent,
    })
    sent.on('error', reject)
    sent.on('response', (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (piece: string) => (text += piece))
      response.on('error', reject)
      response.on('end', () => {
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: JSON.parse(text) as Answer['body'],
        })
      })
    })
    sent.end(JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content }] }) + ' '.repeat(padding))
  })
}

/** Processes of the gateway program that this process started. */
function gatewayPids(): number[] {
  return readdirSync('/proc').flatMap((name) => {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8')
      const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
      const isGateway = readFileSync(`/proc/${name}/cmdline`, 'utf8').includes('gateway-shard')
      return parent === process.pid && isGateway ? [Number(name)] : []
    } catch {
      return []
    }
  })
}

async function killGateway(lines: readonly LogLine[]): Promise<void> {
  const before = lines.length
  for (const pid of gatewayPids()) process.kill(pid, 'SIGKILL')
  await expect.poll(() => lines.slice(before).map(({ msg }) => msg)).toContain('gateway process exited; restarting it')
}

describe('a gateway process', () => {
  test.each([
    ['TCP', () => undefined],
    ['Unix', () => join(scratch, 'door.sock')],
  ])('serves the connections of a %s socket; the parent process reads none of their bytes', async (_, path) => {
    await using started = await start()
    const { gateway } = started
    const session = await gateway.openSession()
    using sandboxSocket = await SandboxSocket.open(gateway, session, path())
    const agent = new Agent({ keepAlive: true, maxSockets: 4 })
    const answers = await Promise.all(
      Array.from({ length: 12 }, () => call(sandboxSocket.to, session, { padding: 200_000, agent })),
    )
    agent.destroy()
    expect(answers.map(({ body }) => body.choices?.[0]?.message.content)).toEqual(Array(12).fill('fine'))
    expect(sandboxSocket.sockets).toHaveLength(4)
    expect(sandboxSocket.sockets.map(({ bytesRead }) => bytesRead)).toEqual([0, 0, 0, 0])
    // Connections that were passed to the gateway are closed in this process, so that they do not accumulate.
    expect(sandboxSocket.sockets.every(({ destroyed }) => destroyed)).toBe(true)
    await expect.poll(() => gateway.progressOf(session.id)).toEqual({ calls: 12, tokens: expect.any(Number) })
    expect(gateway.progressOf(session.id)!.tokens).toBeGreaterThan(12)
    await gateway.closeSession(session.id)
    expect(gateway.progressOf(session.id)).toBeUndefined()
  })

  test('a connection acts for the session of its socket only', async () => {
    await using started = await start()
    const { gateway } = started
    const [own, other] = [await gateway.openSession(), await gateway.openSession()]
    using sandboxSocket = await SandboxSocket.open(gateway, own)
    expect((await call(sandboxSocket.to, other)).status).toBe(401)
    expect((await call(sandboxSocket.to, own)).status).toBe(200)
  })
})

describe('when a gateway process exits', () => {
  test('sessions keep log, key, sampling, weights and pause; connections wait for the restart', async () => {
    await using started = await start()
    const { gateway, lines } = started
    const session = await gateway.openSession({ sampling: { maxTokens: 1 } })
    using sandboxSocket = await SandboxSocket.open(gateway, session)
    await gateway.setWeightVersion('step-7')
    await call(sandboxSocket.to, session)
    const lost = call(sandboxSocket.to, session, { content: 'SCRIPT:slow' })
    lost.catch(() => {})
    await expect.poll(() => gateway.status()).toMatchObject({ inFlight: 1 })
    // The next process also holds calls until `resume`.
    await gateway.pause(0)
    await killGateway(lines)
    await expect(lost).rejects.toMatchObject({ code: 'ECONNRESET' })
    const waiting = call(sandboxSocket.to, session)
    expect(await gateway.status()).toEqual({ paused: true, inFlight: 0, sessions: 1, weightVersion: 'step-7' })
    await gateway.resume()
    expect((await waiting).body.choices).toHaveLength(1)
    expect(await gateway.closeSession(session.id)).toBeUndefined()
    const { turns, complete, incompleteReasons } = await createCallLogReader({ dir: scratch }).load(session.id)
    expect(incompleteReasons).toEqual([])
    expect(complete).toBe(true)
    expect(turns.map(({ index }) => index)).toEqual([0, 1, 2])
    expect(turns.map(({ failure }) => failure?.code)).toEqual([undefined, 'session.gateway-lost', undefined])
    const answers = turns.flatMap(({ response }) => response?.choices ?? [])
    expect(answers.map(({ ids }) => ids.length)).toEqual([1, 1])
    expect(answers.map(({ weightSpans }) => weightSpans)).toEqual([
      [{ from: 0, version: 'step-7' }],
      [{ from: 0, version: 'step-7' }],
    ])
  })

  test('a request body that exhausts the heap affects only calls in flight of other sessions', async () => {
    await using started = await start({ heapMb: 48 })
    const { gateway, lines } = started
    const [hostile, innocent] = [await gateway.openSession(), await gateway.openSession()]
    using bad = await SandboxSocket.open(gateway, hostile)
    using good = await SandboxSocket.open(gateway, innocent)
    expect((await call(good.to, innocent)).status).toBe(200)
    await expect(call(bad.to, hostile, { content: 'x'.repeat(30_000_000) })).rejects.toThrow()
    await expect.poll(() => lines.some(({ reason }) => reason === 'SIGABRT')).toBe(true)
    expect((await call(good.to, innocent)).status).toBe(200)
    await gateway.closeSession(innocent.id)
    const { turns, complete } = await createCallLogReader({ dir: scratch }).load(innocent.id)
    expect([turns.length, complete]).toEqual([2, true])
  })

  test('repeatedly, the delay before a restart increases, and calls and status requests still succeed', async () => {
    await using started = await start()
    const { gateway, lines } = started
    const session = await gateway.openSession()
    using sandboxSocket = await SandboxSocket.open(gateway, session)
    for (let kills = 0; kills < 3; kills++) {
      await killGateway(lines)
      expect((await call(sandboxSocket.to, session)).status).toBe(200)
    }
    expect(lines.flatMap(({ delayMs }) => delayMs ?? [])).toEqual([100, 200, 400])
    expect(await gateway.status()).toMatchObject({ sessions: 1 })
  })

  test('three times during calls of one session, its calls are rejected, and other sessions continue', async () => {
    await using started = await start()
    const { gateway, lines } = started
    const [hostile, innocent] = [await gateway.openSession(), await gateway.openSession()]
    using bad = await SandboxSocket.open(gateway, hostile)
    using good = await SandboxSocket.open(gateway, innocent)
    const begin = async (...calls: [SandboxSocket, SessionAccess][]): Promise<void> => {
      for (const [sandboxSocket, session] of calls)
        call(sandboxSocket.to, session, { content: 'SCRIPT:slow' }).catch(() => {})
      await expect.poll(() => gateway.status()).toMatchObject({ inFlight: calls.length })
    }
    for (let kills = 0; kills < 2; kills++) {
      await begin([bad, hostile], [good, innocent])
      await killGateway(lines)
    }
    await begin([bad, hostile])
    await killGateway(lines)
    expect(await call(bad.to, hostile)).toMatchObject({
      status: 403,
      body: { error: { code: 'request.crashed-gateway', message: expect.stringContaining('3 times') } },
    })
    expect((await call(good.to, innocent)).status).toBe(200)
    expect(lines.filter(({ msg }) => msg.startsWith('session kills')).map(({ sessionId }) => sessionId)).toEqual([
      hostile.id,
    ])
    expect(await gateway.closeSession(hostile.id)).toBeUndefined()
    const { turns, complete } = await createCallLogReader({ dir: scratch }).load(hostile.id)
    expect(turns.map(({ failure }) => failure?.code)).toEqual([
      ...Array(3).fill('session.gateway-lost'),
      'request.crashed-gateway',
    ])
    expect(complete).toBe(true)
  })

  test('a process that does not respond is killed and restarted', async () => {
    await using started = await start({ hangMs: 3000 })
    const { gateway, lines } = started
    const session = await gateway.openSession()
    using sandboxSocket = await SandboxSocket.open(gateway, session)
    for (const pid of gatewayPids()) process.kill(pid, 'SIGSTOP')
    const waiting = call(sandboxSocket.to, session)
    await expect.poll(() => lines.map(({ msg }) => msg)).toContain('gateway process does not respond; killing it')
    // The stopped process had not accepted the connection, so the next process serves it.
    expect((await waiting).status).toBe(200)
  })
})
