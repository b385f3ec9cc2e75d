import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Client, createClient } from '../../src/client/client.ts'
import { RolloutError } from '../../src/model/failure.ts'
import type { SessionOrder } from '../../src/model/session-order.ts'
import { openDatabase } from '../../src/store/database.ts'
import { auditTables } from '../support/dispatch-tables.ts'
import { type Postgres, startPostgres, whyNoPostgres } from '../support/postgres.ts'
import { makeOutcome, makeResult, makeTask, startTestServer, TestNode } from '../support/rollout-server.ts'

const program = join(import.meta.dirname, '../support/server-process.ts')
const scratch = await mkdtemp(join(tmpdir(), 'polar-server-e2e-'))
afterAll(() => rm(scratch, { recursive: true, force: true }))

interface ServerProcess {
  child: ChildProcess
  url: string
}

async function startProcess(settings: object): Promise<ServerProcess> {
  const child = spawn(process.execPath, [program, JSON.stringify(settings)], {
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  })
  for await (const line of createInterface(child.stdout!)) return { child, ...(JSON.parse(line) as { url: string }) }
  throw new Error('The server did not start.')
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill(signal)
  await once(child, 'exit')
}

/** Connects to one of the servers, and to the next server after a connection failure. */
function connect(urls: readonly string[]): Client {
  let at = Math.floor(Math.random() * urls.length)
  const send = async (request: Request): Promise<Response> => {
    const { pathname, search } = new URL(request.url)
    const body = request.body === null ? null : await request.arrayBuffer()
    try {
      const url = `${urls[at % urls.length]}${pathname}${search}`
      return await fetch(url, { method: request.method, headers: request.headers, body, signal: request.signal })
    } catch (error) {
      at += 1
      throw error
    }
  }
  return createClient({ baseUrl: 'http://any', fetch: send, attempts: 1000, baseDelayMs: 20, maxDelayMs: 200 })
}

/** Runs a node that retries until every finished session is delivered, also across server failures. */
async function runNode(client: Client, id: string, stop: AbortSignal): Promise<string[]> {
  const node = await TestNode.join(client, id)
  const delivered: string[] = []
  const held = new Map<string, SessionOrder>()
  const deliver = async (order: SessionOrder): Promise<void> => {
    const isFailing = order.attempt === 1 && Number.parseInt(order.sessionId.at(-1)!, 16) % 5 === 0
    const failure = { code: 'runtime.gone', message: 'gone', status: 500 } as const
    const more = isFailing ? ({ status: 'ERROR', failure, grade: undefined } as const) : {}
    try {
      await node.complete(order, more)
      if (!isFailing) delivered.push(order.sessionId)
    } catch (error) {
      if (!(error instanceof RolloutError) || error.code !== 'request.stale') throw error
    } finally {
      held.delete(order.sessionId)
    }
  }
  while (!stop.aborted) {
    const holding = [...held.values()].map(({ sessionId, attempt }) => ({ session_id: sessionId, attempt }))
    const body = { free_slots: 4, wait: 1, holding }
    const { orders } = await client.leaseSessions({ params: node.params, body })
    for (const { order } of orders) held.set(order.sessionId, order)
    await Promise.all(orders.map(({ order }) => deliver(order)))
  }
  return delivered
}

async function countFiles(dir: string): Promise<number> {
  const names = await readdir(join(dir, 'results'), { recursive: true, withFileTypes: true })
  return names.filter((entry) => entry.isFile()).length
}

test('an embedded server that is killed repeatedly loses no session and accepts each result once', async () => {
  const settings = { database: { dir: join(scratch, 'one') }, filesDir: join(scratch, 'one-files'), leaseMs: 3000 }
  const port = await freePort()
  const start = () => startProcess({ ...settings, listen: { host: '127.0.0.1', port } })
  let server = await start()
  const client = connect([server.url])
  const tasks = Array.from({ length: 4 }, (_, i) => makeTask(`t${i}`, 10))
  const stop = new AbortController()
  const nodes = ['a', 'b'].map((id) => runNode(connect([server.url]), id, stop.signal))
  for (const body of tasks) {
    await client.submitTask({ body })
    await setTimeout(Math.random() * 400)
    await end(server.child, 'SIGKILL')
    server = await start()
  }
  await expectAllOnce(client, tasks, nodes, stop)
  await end(server.child, 'SIGTERM')
  await expectConsistentDispatch({ dir: settings.database.dir })
})

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

async function expectAllOnce(
  client: Client,
  tasks: readonly { task_id: string; num_samples: number }[],
  nodes: readonly Promise<string[]>[],
  stop: AbortController,
): Promise<void> {
  const results: string[] = []
  for (const { task_id, num_samples } of tasks) {
    for (;;) {
      const task = await client.getTask({ params: { task_id }, query: { wait: 5 } })
      if (task.status === 'running') continue
      expect(task).toMatchObject({ status: 'completed', total_sessions: num_samples, completed_sessions: num_samples })
      expect(task.results.every(({ status }) => status === 'COMPLETED')).toBe(true)
      results.push(...task.results.map(({ session_id }) => session_id))
      break
    }
  }
  stop.abort()
  const delivered = (await Promise.all(nodes)).flat()
  expect(new Set(results).size).toBe(results.length)
  expect(delivered.toSorted()).toEqual(results.toSorted())
}

async function expectConsistentDispatch(location: { dir: string } | { url: string }): Promise<void> {
  await using database = await openDatabase(location)
  expect(await auditTables(database)).toEqual([])
}

const reason = whyNoPostgres()
if (reason !== undefined) {
  test('servers on PostgreSQL', (context) => context.skip(reason))
} else {
  describe('servers on PostgreSQL', () => {
    let postgres: Postgres
    beforeAll(async () => {
      postgres = await startPostgres()
    })
    afterAll(() => postgres?.[Symbol.asyncDispose]())

    test('share the sessions; when one server is killed, no session is lost and each result is accepted once', async () => {
      const url = await postgres.createDatabase('shared')
      const settings = { database: { url }, filesDir: join(scratch, 'shared-files'), leaseMs: 3000 }
      const [one, two] = await Promise.all([startProcess(settings), startProcess(settings)])
      const client = connect([two.url])
      const tasks = Array.from({ length: 8 }, (_, i) => makeTask(`t${i}`, 10))
      const stop = new AbortController()
      const nodes = ['a', 'b', 'c', 'd'].map((id) => runNode(connect([one.url, two.url]), id, stop.signal))
      const watcher = collect(client, tasks.length)
      for (const [i, body] of tasks.entries()) {
        await connect([one.url, two.url]).submitTask({ body })
        if (i === 4) await end(one.child, 'SIGKILL')
      }
      await expectAllOnce(client, tasks, nodes, stop)
      expect((await watcher).toSorted()).toEqual(tasks.map(({ task_id }) => task_id))
      await end(two.child, 'SIGTERM')
      await expectConsistentDispatch({ url })
      // One file per accepted result; results of repeated attempts may add more.
      expect(await countFiles(settings.filesDir)).toBeGreaterThanOrEqual(80)
    })

    test('a change on one server wakes long polls on the other server at once', async () => {
      const database = { url: await postgres.createDatabase('both') }
      const filesDir = join(scratch, 'both-files')
      await using one = await startTestServer({ database, filesDir })
      await using two = await startTestServer({ database, filesDir })
      const node = await TestNode.join(one.client, 'n')
      const lease = node.lease(1, 30)
      await expect.poll(() => one.server.waiting).toBe(1)
      const submitted = performance.now()
      await two.client.submitTask({ body: makeTask('t') })
      const [order] = await lease
      expect(performance.now() - submitted).toBeLessThan(2000)
      const waiting = two.client.getTask({ params: { task_id: 't' }, query: { wait: 30 } })
      await expect.poll(() => two.server.waiting).toBe(1)
      const completed = performance.now()
      await node.complete(order!)
      expect(await waiting).toMatchObject({ status: 'completed' })
      expect(performance.now() - completed).toBeLessThan(3000)
    })

    test('requests return store.unavailable while the database restarts, and runNode again afterwards', async () => {
      await using at = await startTestServer({ database: { url: await postgres.createDatabase('away') } })
      const node = await TestNode.join(at.client, 'n')
      await at.client.submitTask({ body: makeTask('t', 2) })
      const [order] = await node.lease(1)
      const events = at.client.streamEvents({ query: { task_id: 't' } })
      await events.next()
      const statuses = new Set<string>()
      let isDown = true
      const polling = (async () => {
        while (isDown) {
          const response = await fetch(`${at.server.url}/tasks`)
          const body = (await response.json()) as { error?: { code: string } }
          statuses.add(`${response.status} ${body.error?.code ?? ''} ${response.headers.get('retry-after') ?? ''}`)
          await setTimeout(10)
        }
      })()
      await postgres.crash()
      isDown = false
      await polling
      for (const status of statuses) expect(['200  ', '503 store.unavailable 1']).toContain(status)
      await expect.poll(async () => (await fetch(`${at.server.url}/health`)).status, { timeout: 10_000 }).toBe(200)
      // Long polls are woken too, so the server has renewed its LISTEN connection to the database.
      const waiting = at.client.getTask({ params: { task_id: 't' }, query: { wait: 30, known_completed: 0 } })
      expect(await node.complete(order!)).toMatchObject({ kind: 'accepted' })
      expect(await waiting).toMatchObject({ completed_sessions: 1 })
      expect((await events.next()).value).toMatchObject({ data: { type: 'session.state_changed' } })
      await events.return(undefined)
      const lease = node.lease(1, 30)
      expect(await lease).toHaveLength(1)
    })

    test('a task status of hundreds of megabytes is streamed without buffering', async () => {
      const database = { url: await postgres.createDatabase('large') }
      const server = await startProcess({ database, filesDir: join(scratch, 'large-files'), leaseMs: 600_000 })
      const client = createClient({ baseUrl: server.url })
      const samples = 16
      await client.submitTask({ body: makeTask('t', samples) })
      const node = await TestNode.join(client, 'n')
      for (const order of await node.lease(samples)) {
        const response_ids = Array.from({ length: 700_000 }, (_, i) => (i * 7919) % 150_000)
        const result = makeResult(makeOutcome(order, 'n'))
        const trace = { ...result.trajectory.traces[0]!, response_ids, loss_mask: response_ids.map(() => 1 as const) }
        const trajectory = { ...result.trajectory, traces: [{ ...trace, response_logprobs: null }] }
        await node.complete(order, { result: { trajectory } })
      }
      const before = await memoryOf(server.child)
      let bytes = 0
      let peak = before
      const response = await fetch(`${server.url}/rollout/task/t`)
      for await (const chunk of response.body!) {
        bytes += chunk.length
        if (bytes % 64 === 0) peak = Math.max(peak, await memoryOf(server.child))
      }
      expect(bytes).toBeGreaterThan(samples * 4_000_000)
      expect((peak - before) / 1e6).toBeLessThan(60)
      await end(server.child, 'SIGTERM')
    })
  })
}

/** Returns the ids of the first `count` tasks for which a task.completed event arrives. */
async function collect(client: Client, count: number): Promise<string[]> {
  const ids: string[] = []
  for await (const { data } of client.streamEvents({ query: { last_event_id: '0-0' } })) {
    if (data.type === 'task.completed') ids.push(data.data['task_id'] as string)
    if (ids.length === count) break
  }
  return ids
}

async function memoryOf(child: ChildProcess): Promise<number> {
  child.send('memory')
  const [{ rss }] = (await once(child, 'message')) as [{ rss: number }]
  return rss
}
