import { spawn, spawnSync } from 'node:child_process'
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import pino from 'pino'
import { afterAll, afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { copyDatabase } from '../../../test/support/database-template.ts'
import { DispatchDriver } from '../../../test/support/dispatch-driver.ts'
import { type Clock, systemClock } from '../../lib/async/clock.ts'
import { OwnAddresses } from '../../lib/net/own-addresses.ts'
import { openDatabase } from '../../store/database.ts'
import { assertCallbackAllowed, type CallbackDeps, type CallbackOptions, CallbackSender } from './callback-sender.ts'

const SECRET = 'whsec-of-the-test'
const dir = await mkdtemp(join(tmpdir(), 'polar-callbacks-'))
await copyDatabase(join(dir, 'database'))
const database = await openDatabase({ dir: join(dir, 'database') })
const driver = new DispatchDriver(database)
afterAll(async () => {
  await database[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true })
})

/** Delays between tries pass a hundred times as fast. */
const started = Date.now()
const fast: Clock = {
  now: () => started + (Date.now() - started) * 100,
  after: (ms, call) => systemClock.after(ms / 100, call),
}

interface Received {
  headers: IncomingMessage['headers']
  body: Buffer
}

/** A trainer with a scripted response to each request; records the requests. */
class Trainer implements AsyncDisposable {
  readonly received: Received[] = []
  readonly #server = createServer((request, response) => void this.#take(request, response))
  readonly #answer: (response: ServerResponse, count: number) => void

  private constructor(answer: (response: ServerResponse, count: number) => void) {
    this.#answer = answer
  }

  static async start(answer: (response: ServerResponse, count: number) => void): Promise<Trainer> {
    const trainer = new Trainer(answer)
    trainer.#server.listen(0, '127.0.0.1')
    await once(trainer.#server, 'listening')
    return trainer
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/done`
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    this.received.push({ headers: request.headers, body: Buffer.concat(chunks) })
    this.#answer(response, this.received.length)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((closed) => this.#server.close(closed))
  }
}

const ok = (response: ServerResponse): unknown => response.end('ok')

async function* streamOf(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes
}

function resultOf(taskId: string): Buffer {
  return Buffer.from(JSON.stringify({ task_id: taskId, status: 'completed', results: [] }))
}

function start(options: CallbackOptions = {}, more: Partial<CallbackDeps> = {}) {
  const deps = {
    dispatch: driver.dispatch,
    clock: fast,
    logger: pino({ level: 'silent' }),
    random: () => 0.5,
    openTaskResult: async (taskId: string) => streamOf(resultOf(taskId)),
    ...more,
  }
  return new CallbackSender({ secret: SECRET, ...options }, deps)
}

/** Creates an ended task with a callback. */
async function end(id: string, url: string): Promise<void> {
  await driver.submit(id, 1, { callback_url: url })
  await driver.dispatch.cancelTask(id)
}

async function rowOf(taskId: string) {
  return await database.db.selectFrom('callbacks').selectAll().where('task_id', '=', taskId).executeTakeFirstOrThrow()
}

async function expectState(taskId: string, state: string): Promise<void> {
  await vi.waitFor(async () => expect((await rowOf(taskId)).state).toBe(state), { timeout: 20_000, interval: 20 })
}

/** Verifies the signature as described in the docs. */
function isSigned({ headers, body }: Received, secret: string): boolean {
  const parts = new Map(
    String(headers['x-polar-signature'])
      .split(',')
      .map((part) => part.split('=', 2) as [string, string]),
  )
  const expected = createHmac('sha256', secret)
    .update(Buffer.concat([Buffer.from(`${parts.get('t')}.`), body]))
    .digest()
  const given = Buffer.from(parts.get('v1') ?? '', 'hex')
  return given.length === expected.length && timingSafeEqual(given, expected)
}

beforeEach(async () => {
  driver.wall = Date.now()
  await driver.clear()
})
const opened: AsyncDisposable[] = []
afterEach(async () => {
  for (const one of opened.splice(0).reverse()) await one[Symbol.asyncDispose]()
})
function open<T extends AsyncDisposable>(one: T): T {
  opened.push(one)
  return one
}

test('a response of 200 with {"ok": false} counts as failed and is retried', async () => {
  const answers = ['{"ok": false}', '{ "ok" : false, "why": "unknown task" }', '{"ok": true}']
  const trainer = open(
    await Trainer.start((response, count) =>
      response.setHeader('content-type', 'application/json').end(answers[count - 1]),
    ),
  )
  open(start())
  await end('t', trainer.url)
  await expectState('t', 'delivered')
  expect(trainer.received).toHaveLength(3)
})

test.each(['', 'not JSON', '{"ok": true}', '{"ok": "false"}', '[]', 'null', 'false'])(
  'an answer of 200 with %j is a delivery',
  async (text) => {
    const trainer = open(await Trainer.start((response) => response.end(text)))
    open(start())
    await end('t', trainer.url)
    await expectState('t', 'delivered')
    expect(trainer.received).toHaveLength(1)
  },
)

test('the callback of an ended task is sent once, signed', async () => {
  const trainer = open(await Trainer.start(ok))
  open(start())
  await end('lab/run 1 – é', trainer.url)
  await expectState('lab/run 1 – é', 'delivered')
  const [first, ...others] = trainer.received
  expect(others).toEqual([])
  expect(first!.body).toEqual(resultOf('lab/run 1 – é'))
  expect(first!.headers).toMatchObject({
    'content-type': 'application/json',
    'content-length': String(first!.body.length),
    'x-polar-task-id': 'lab/run%201%20%E2%80%93%20%C3%A9',
    'x-polar-delivery': expect.stringMatching(/^dlv_[0-9a-f]{32}$/),
    'idempotency-key': first!.headers['x-polar-delivery'],
  })
  expect(isSigned(first!, SECRET)).toBe(true)
  expect(isSigned(first!, 'another')).toBe(false)
  expect(isSigned({ ...first!, body: Buffer.concat([first!.body, Buffer.from(' ')]) }, SECRET)).toBe(false)
  const seconds = Number(/t=(\d+)/.exec(String(first!.headers['x-polar-signature']))?.[1])
  expect(Math.abs(seconds - fast.now() / 1000)).toBeLessThan(600)
})

test('without a secret callbacks are not signed', async () => {
  const trainer = open(await Trainer.start(ok))
  open(start({ secret: undefined }))
  await end('t', trainer.url)
  await expectState('t', 'delivered')
  expect(trainer.received[0]!.headers['x-polar-signature']).toBeUndefined()
})

test('a result above the buffer limit is read twice and sent completely and signed', async () => {
  const body = randomBytes(9 * 2 ** 20)
  let opens = 0
  const trainer = open(await Trainer.start(ok))
  open(
    start(
      {},
      {
        openTaskResult: async () => {
          opens += 1
          return new Blob([body]).stream()
        },
      },
    ),
  )
  await end('t', trainer.url)
  await expectState('t', 'delivered')
  expect(opens).toBe(2)
  expect(trainer.received[0]!.body.equals(body)).toBe(true)
  expect(isSigned(trainer.received[0]!, SECRET)).toBe(true)
})

describe('a failing trainer', () => {
  test.each([500, 503, 408, 425, 429])('with status %d is retried with the same delivery id', async (status) => {
    const trainer = open(
      await Trainer.start((response, count) => {
        response.statusCode = count < 3 ? status : 204
        response.end()
      }),
    )
    open(start())
    await end('t', trainer.url)
    await expectState('t', 'delivered')
    expect(trainer.received).toHaveLength(3)
    expect(new Set(trainer.received.map(({ headers }) => headers['x-polar-delivery'])).size).toBe(1)
    expect(trainer.received.every((one) => isSigned(one, SECRET))).toBe(true)
  })

  test.each([400, 401, 404, 410, 422])('with status %d is dead after three tries', async (status) => {
    const trainer = open(
      await Trainer.start((response) => {
        response.statusCode = status
        response.end('no')
      }),
    )
    open(start())
    await end('t', trainer.url)
    await expectState('t', 'dead')
    expect(trainer.received).toHaveLength(3)
    expect(await rowOf('t')).toMatchObject({ tries: 3, last_error: `responded with ${status}` })
  })

  test('that closes the connection or does not listen gets all attempts, then the callback is dead', async () => {
    const trainer = open(await Trainer.start((response) => response.destroy()))
    open(start({ attempts: 4 }))
    await end('t', trainer.url)
    await end('nobody', 'http://127.0.0.1:1/done')
    await expectState('t', 'dead')
    await expectState('nobody', 'dead')
    expect(trainer.received).toHaveLength(4)
    expect((await rowOf('nobody')).last_error).toMatch(/ECONNREFUSED|refused/)
  })

  test('that does not respond is disconnected after the time limit, and retried', async () => {
    const trainer = open(await Trainer.start((response, count) => (count === 1 ? undefined : response.end())))
    open(start({ timeoutMs: 300 }))
    await end('t', trainer.url)
    await expectState('t', 'delivered')
    expect(trainer.received).toHaveLength(2)
  })

  test('is retried after its retry-after, within limits', async () => {
    const trainer = open(
      await Trainer.start((response, count) => {
        response.writeHead(503, { 'retry-after': count === 1 ? '1234' : '99999999' }).end()
      }),
    )
    const stopped = { ...systemClock, now: () => 1_700_000_000_000 }
    driver.wall = stopped.now()
    open(start({}, { clock: stopped }))
    await end('t', trainer.url)
    await vi.waitFor(async () => expect((await rowOf('t')).last_error).toBe('responded with 503'), {
      timeout: 20_000,
    })
    expect((await rowOf('t')).next_at).toBe(stopped.now() + 1_234_000)
    await database.db.updateTable('callbacks').set({ next_at: stopped.now(), last_error: null }).execute()
    await vi.waitFor(async () => expect((await rowOf('t')).last_error).toBe('responded with 503'), {
      timeout: 20_000,
    })
    expect((await rowOf('t')).next_at).toBe(stopped.now() + 1_500_000)
  })
})

test('a redirect is not followed', async () => {
  const inside = open(await Trainer.start(ok))
  const trainer = open(
    await Trainer.start((response) => {
      response.writeHead(307, { location: inside.url }).end()
    }),
  )
  open(start())
  await end('t', trainer.url)
  await expectState('t', 'dead')
  expect(inside.received).toEqual([])
  expect((await rowOf('t')).last_error).toMatch(/307: redirects are not followed/)
})

describe('only the status of the response counts', () => {
  const answers: [string, (response: ServerResponse) => void][] = [
    ['one that never ends', (response) => endless(response)],
    [
      'one that is shorter than it said',
      (response) => {
        response.writeHead(200, { 'content-length': '1000' })
        response.write('short')
        setTimeout(() => response.destroy(), 20)
      },
    ],
    ['one that goes on for ever without a byte', (response) => response.writeHead(200).flushHeaders()],
    [
      'one with a huge length',
      (response) => {
        response.writeHead(200, { 'content-length': String(2 ** 40) })
        response.write('x')
      },
    ],
  ]
  test.each(answers)('%s', async (_, answer) => {
    const trainer = open(await Trainer.start(answer))
    open(start({ timeoutMs: 2000 }, { clock: systemClock }))
    await end('t', trainer.url)
    await expectState('t', 'delivered')
    expect(trainer.received).toHaveLength(1)
  })

  test('a response with too large headers is a failure', async () => {
    const trainer = open(
      await Trainer.start((response, count) => {
        if (count === 1) response.setHeader('x-much', 'x'.repeat(60_000))
        response.end()
      }),
    )
    open(start())
    await end('t', trainer.url)
    await expectState('t', 'delivered')
    expect(trainer.received).toHaveLength(2)
  })
})

function endless(response: ServerResponse): void {
  const chunk = Buffer.alloc(16_384, 'x')
  const more = (): void => {
    while (!response.destroyed && response.write(chunk)) continue
    if (!response.destroyed) response.once('drain', more)
  }
  more()
}

test('a hanging trainer does not delay other hosts, and gets few concurrent requests', async () => {
  let now = 0
  let most = 0
  const dead = open(
    await Trainer.start((response) => {
      now += 1
      most = Math.max(most, now)
      response.on('close', () => void (now -= 1))
    }),
  )
  const alive = open(await Trainer.start(ok))
  for (let i = 0; i < 100; i++) await end(`dead-${i}`, dead.url)
  for (let i = 0; i < 20; i++) await end(`alive-${i}`, alive.url)
  const begun = performance.now()
  open(start({ timeoutMs: 30_000, perHost: 3 }, { clock: systemClock, pollMs: 50 }))
  for (let i = 0; i < 20; i++) await expectState(`alive-${i}`, 'delivered')
  // Much sooner than one request to the dead host takes.
  expect(performance.now() - begun).toBeLessThan(25_000)
  expect(alive.received).toHaveLength(20)
  expect(most).toBeLessThanOrEqual(3)
  const rows = await database.db.selectFrom('callbacks').selectAll().where('task_id', 'like', 'dead-%').execute()
  // Postponed callbacks have no tries counted.
  expect(rows.filter(({ tries }) => tries > 1)).toEqual([])
})

test('two servers share the callbacks, and each is sent once', async () => {
  const trainer = open(await Trainer.start(ok))
  for (let i = 0; i < 30; i++) await end(`t-${i}`, trainer.url)
  const senders = [open(start({}, { clock: systemClock })), open(start({}, { clock: systemClock }))]
  for (const sender of senders) sender.wake()
  for (let i = 0; i < 30; i++) await expectState(`t-${i}`, 'delivered')
  expect(trainer.received).toHaveLength(30)
  expect(new Set(trainer.received.map(({ headers }) => headers['x-polar-delivery'])).size).toBe(30)
})

test('a stopped sender releases its callbacks, and another sends them at once', async () => {
  const trainer = open(await Trainer.start((response, count) => (count === 1 ? undefined : response.end())))
  const first = start({}, { clock: systemClock })
  driver.wall = Date.now()
  await end('t', trainer.url)
  await vi.waitFor(() => expect(trainer.received).toHaveLength(1), { timeout: 20_000 })
  await first[Symbol.asyncDispose]()
  expect(await rowOf('t')).toMatchObject({ state: 'waiting', tries: 0 })
  open(start({}, { clock: systemClock }))
  await expectState('t', 'delivered')
})

describe('a host name', () => {
  test('is resolved once per connection, which uses the checked address', async () => {
    const trainer = open(await Trainer.start(ok))
    const asked: string[] = []
    const resolve = async (name: string) => {
      asked.push(name)
      // The second resolution is the attacker's address.
      return asked.length === 1 ? ['127.0.0.1'] : ['169.254.169.254']
    }
    open(start({ allowedHosts: ['trainer.lab', 'loopback'] }, { resolve }))
    await end('t', `http://trainer.lab:${trainer.port}/done`)
    await expectState('t', 'delivered')
    expect(asked).toEqual(['trainer.lab'])
    expect(trainer.received[0]!.headers.host).toBe(`trainer.lab:${trainer.port}`)
  })

  test.each([
    ['this machine', ['127.0.0.1']],
    ['a metadata service', ['169.254.169.254']],
    ['one good and one bad address', ['93.184.216.34', '127.0.0.1']],
    ['an address within an address', ['::ffff:127.0.0.1']],
  ])('that resolves to %s is refused', async (_, addresses) => {
    const trainer = open(await Trainer.start(ok))
    open(start({ allowedHosts: ['*.lab.example'] }, { resolve: async () => addresses }))
    await end('t', `http://a.lab.example:${trainer.port}/done`)
    await expectState('t', 'dead')
    expect(trainer.received).toEqual([])
    expect((await rowOf('t')).last_error).toMatch(/host is not allowed: a\.lab\.example resolves to/)
  })

  test('that does not resolve is retried', async () => {
    const trainer = open(await Trainer.start(ok))
    let asked = 0
    const resolve = async () => {
      asked += 1
      if (asked === 1) throw Object.assign(new Error('getaddrinfo ENOTFOUND'), { code: 'ENOTFOUND' })
      return ['127.0.0.1']
    }
    open(start({ allowedHosts: ['trainer.lab', 'loopback'] }, { resolve }))
    await end('t', `http://trainer.lab:${trainer.port}/done`)
    await expectState('t', 'delivered')
  })
})

test('a host that is no longer allowed when its task ends gets no callback', async () => {
  const trainer = open(await Trainer.start(ok))
  open(start({ allowedHosts: ['elsewhere.lab'] }))
  await end('t', trainer.url)
  await expectState('t', 'dead')
  expect(trainer.received).toEqual([])
})

describe('an address of Polar itself', () => {
  test.each([
    ['that a task was submitted with before it was known', 'http://127.0.0.1', ['loopback']],
    ['in another spelling', 'http://[::ffff:7f00:1]', ['loopback']],
    ['that a name resolves to', 'http://trainer.lab', ['trainer.lab', 'loopback']],
    ['that one of several addresses of a name is', 'http://both.lab', ['both.lab', 'loopback']],
  ])('%s is refused', async (_, origin, allowedHosts) => {
    const listener = open(await Trainer.start(ok))
    const own = new OwnAddresses()
    own.add(`http://127.0.0.1:${listener.port}`)
    const resolve = async (name: string) => (name === 'both.lab' ? ['10.0.0.5', '127.0.0.1'] : ['::1'])
    open(start({ allowedHosts, own }, { resolve }))
    await end('t', `${origin}:${listener.port}/tasks`)
    await expectState('t', 'dead')
    expect((await rowOf('t')).last_error).toMatch(/address of Polar itself/)
    expect(listener.received).toEqual([])
  })

  test('is not reached by a redirect, and the request has the outbound header', async () => {
    const listener = open(await Trainer.start(ok))
    const trainer = open(
      await Trainer.start((response) =>
        response.writeHead(307, { location: `http://127.0.0.1:${listener.port}/tasks` }).end(),
      ),
    )
    open(start())
    await end('t', trainer.url)
    await expectState('t', 'dead')
    expect(trainer.received[0]!.headers['x-polar-outbound']).toBe('callback')
    expect(listener.received).toEqual([])
  })

  test('is refused when a task is submitted', () => {
    const own = new OwnAddresses()
    own.add('http://127.0.0.1:8080')
    for (const url of [
      'http://127.0.0.1:8080/',
      'http://localhost:8080/x',
      'http://2130706433:8080/',
      'http://[::1]:8080/',
    ])
      expect(() => assertCallbackAllowed(url, { own }), url).toThrow(/an address of Polar itself/)
    expect(() => assertCallbackAllowed('http://127.0.0.1:8082/', { own })).not.toThrow()
  })
})

test('a deleted task or an unreadable result does not count as a host failure', async () => {
  const trainer = open(await Trainer.start(ok))
  let reads = 0
  open(
    start(
      {},
      {
        openTaskResult: async (taskId) => {
          if (taskId === 'gone') return undefined
          reads += 1
          if (reads === 1) throw new Error('the disk is away')
          return streamOf(resultOf(taskId))
        },
      },
    ),
  )
  await end('gone', trainer.url)
  await end('later', trainer.url)
  await expectState('gone', 'dead')
  await expectState('later', 'delivered')
  expect((await rowOf('gone')).last_error).toBe('the task runs again or was deleted')
})

test('assertCallbackAllowed() rejects a URL that is not allowed and lists the allowed hosts', () => {
  expect(() => assertCallbackAllowed('http://127.0.0.1:1/x', {})).not.toThrow()
  expect(() => assertCallbackAllowed('http://10.0.0.1/', {})).toThrow(
    /address 10\.0\.0\.1 is not in the list.*loopback/,
  )
  expect(() => assertCallbackAllowed('http://x/', { allowedHosts: [] })).toThrow(/Allowed hosts are none/)
})

test('a server that is killed after sending sends again after restart, with the same delivery id', async () => {
  const place = join(dir, 'killed')
  const child = (): ReturnType<typeof spawn> =>
    spawn(
      process.execPath,
      [join(import.meta.dirname, '../../../test/support/callback-process.ts'), place, '{"a":1}'],
      {
        stdio: 'inherit',
      },
    )
  const trainer = open(
    await Trainer.start((response, count) => {
      // The request was received completely, and no response was read yet.
      if (count === 1) server.kill('SIGKILL')
      else response.end()
    }),
  )
  await copyDatabase(place)
  {
    await using own = await openDatabase({ dir: place })
    const there = new DispatchDriver(own)
    there.wall = Date.now()
    await there.submit('t', 1, { callback_url: trainer.url })
    await there.dispatch.cancelTask('t')
  }
  let server = child()
  await once(server, 'exit')
  expect(trainer.received).toHaveLength(1)
  {
    // Instead of waiting until the claim of the dead server expires.
    await using own = await openDatabase({ dir: place })
    const [row] = await own.db.selectFrom('callbacks').selectAll().execute()
    expect(row).toMatchObject({ state: 'waiting', tries: 1 })
    expect(row!.next_at).toBeGreaterThan(Date.now())
    await own.db.updateTable('callbacks').set({ next_at: Date.now() }).execute()
  }
  server = child()
  await vi.waitFor(() => expect(trainer.received).toHaveLength(2), { timeout: 30_000 })
  server.kill('SIGKILL')
  await once(server, 'exit')
  const [first, second] = trainer.received
  expect(second!.headers['x-polar-delivery']).toBe(first!.headers['x-polar-delivery'])
  expect(second!.body.equals(first!.body)).toBe(true)
  expect(isSigned(second!, SECRET)).toBe(true)
})

test('the receiver in the docs accepts each signed callback once, and nothing else', async (context) => {
  if (spawnSync('python3', ['--version']).status !== 0)
    context.skip('python3 is not installed: apt-get install python3')
  const page = await readFile(join(import.meta.dirname, '../../../docs/callbacks.md'), 'utf8')
  const [, program = ''] = /^```python\n(.*?)^```/ms.exec(page) ?? []
  const receiver = spawn('python3', ['-c', program, '0'], {
    env: { ...process.env, POLAR_CALLBACK_SECRET: SECRET },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  open({
    async [Symbol.asyncDispose]() {
      receiver.kill()
      await once(receiver, 'exit')
    },
  })
  const lines = createInterface({ input: receiver.stdout })[Symbol.asyncIterator]()
  const port = Number(/\d+/.exec(String((await lines.next()).value))?.[0])
  const url = `http://127.0.0.1:${port}/done`
  open(start({}, { clock: systemClock, pollMs: 50 }))
  await end('t', url)
  await expectState('t', 'delivered')
  // A repeat, as from a restarted server, gets a response and is not handled twice.
  await database.db.updateTable('callbacks').set({ state: 'waiting', next_at: 0 }).execute()
  await expectState('t', 'delivered')
  await end('u', url)
  await expectState('u', 'delivered')
  expect([(await lines.next()).value, (await lines.next()).value]).toEqual(['t completed 0', 'u completed 0'])

  const forged = { 'x-polar-signature': `t=${Math.floor(Date.now() / 1000)},v1=${'0'.repeat(64)}` }
  for (const headers of [{}, forged, { 'x-polar-signature': 'nonsense' }]) {
    expect((await fetch(url, { method: 'POST', body: '{}', headers })).status).toBe(401)
  }
})
