import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import type { Client } from '../../src/client/client.ts'
import type { SessionOrder } from '../../src/model/session-order.ts'
import type { SessionResult } from '../../src/model/session.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { shellTask } from '../support/node-stack.ts'
import { startTestServer, TestNode, type TestServer } from '../support/rollout-server.ts'
import { WorkerStack, type WorkerStackOptions } from '../support/worker-stack.ts'

const WORKER_PROCESS = join(import.meta.dirname, '../support/worker-process.ts')
/** Short, so that leases expire during a test. */
const LEASE_MS = 3000

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-worker-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

const twoCalls = 'call one > a; call two > b'
const passes = { evaluator: { strategy: 'command', config: { command: 'test -e b' } } }
let tasks = 0

async function submit(client: Client, command: string, more: Record<string, unknown> = {}): Promise<string> {
  const id = `task-${tasks++}`
  await client.submitTask({ body: shellTask(bashAgent(command), { task_id: id, ...passes, ...more }) })
  return id
}

async function resultsOf(client: Client, id: string): Promise<SessionResult[]> {
  for (const end = performance.now() + 60_000; performance.now() < end;) {
    const task = await client.getTask({ params: { task_id: id }, query: { wait: 10 } })
    if (task.status === 'completed' || task.status === 'failed') return task.results
  }
  throw new Error(`${id} did not end`)
}

async function sessionOf(client: Client, id: string) {
  const { sessions } = await client.listSessions({ query: { task_id: id } })
  return client.getSession({ params: { session_id: sessions[0]!.session_id } })
}

async function until(what: string, isSo: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = performance.now() + 40_000; !(await isSo());) {
    if (performance.now() > end) throw new Error(`it never came to that: ${what}`)
    await sleep(20)
  }
}

/** Polls for a lease with short waits, as nodes do, so that the server does not consider the node lost. */
async function pollLease(node: TestNode): Promise<SessionOrder> {
  for (const end = performance.now() + 40_000; performance.now() < end;) {
    const [order] = await node.lease(1, 1)
    if (order !== undefined) return order
  }
  throw new Error(`${node.id} was given nothing`)
}

function isRunning({ stack }: WorkerStack, count = 1): boolean {
  return stack.events.filter(({ status }) => status === 'RUNNING').length >= count
}

/** Returns the number of calls in the traces of a result, independent of the builder. */
function callsOf({ trajectory }: SessionResult): number {
  return trajectory.traces.reduce((sum, { metadata }) => sum + (metadata['calls'] as unknown[]).length, 0)
}

describe('with a real server and real sandboxes', { timeout: 120_000 }, () => {
  let test0: TestServer
  beforeAll(async () => {
    test0 = await startTestServer({ leaseMs: LEASE_MS })
  }, 60_000)
  afterAll(() => test0?.[Symbol.asyncDispose]())

  test('results of sessions contain traces, rewards, artifacts and the recorded calls', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url })
    const id = await submit(client, `${twoCalls}; echo said`, {
      num_samples: 3,
      metadata: { group_id: 'g7', rollout_step: 3 },
    })
    const results = await resultsOf(client, id)
    expect(results).toHaveLength(3)
    for (const result of results) {
      expect(result).toMatchObject({ status: 'COMPLETED', node_id: `node-${process.pid}`, error: null })
      expect(result.metadata).toMatchObject({ group_id: 'g7', polar: { attempt: 1 } })
      expect(result.trajectory.metadata).toMatchObject({ rollout_step: 3, record_count: 2 })
      expect(result.trajectory.traces.map(({ reward }) => reward)).toEqual([1, 1])
      expect(result.trajectory.traces[0]!.metadata).toMatchObject({ group_id: 'g7' })
      expect(callsOf(result)).toBe(2)
    }
    const params = { session_id: results[0]!.session_id }
    const { artifacts } = await client.listArtifacts({ params })
    expect(artifacts.map(({ path }) => path)).toEqual(expect.arrayContaining(['agent/stdout.log', 'calls.plog']))
    const stdout = await client.getArtifact({ params, query: { path: 'agent/stdout.log' } })
    expect(await new Response(stdout).text()).toBe('said\n')
    await until('all is set aside', async () => (await readdir(join(member.dir, 'sessions'))).length === 0)
    const past = createCallLogReader({ dir: join(member.dir, 'past', 'attempt-1') })
    expect((await past.load(params.session_id)).turns).toHaveLength(2)
    expect(member.worker.metrics).toMatchObject({ held: 0, accepted: 3, lost: 0 })
    expect(member.stack.opened.labels).toEqual(expect.arrayContaining(['harness:shell', 'runtime:bubblewrap']))
  })

  test('a trainer can read the status and progress of a running session', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url })
    const id = await submit(client, `${twoCalls}; sleep 6`)
    await until('it runs', () => isRunning(member))
    await until('that is seen', async () => {
      const { status, progress } = await sessionOf(client, id)
      return status === 'RUNNING' && progress?.calls === 2 && progress.tokens > 0
    })
    expect(await resultsOf(client, id)).toHaveLength(1)
  })

  test('a cancelled session is stopped within two seconds after the next lease renewal', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url })
    const id = await submit(client, `${twoCalls}; sleep 600`)
    await until('it runs', () => isRunning(member))
    const cancelledAt = Date.now()
    await client.cancelTask({ params: { task_id: id } })
    await until('it ends', () => member.stack.node.sessions.length === 0)
    const agentEndedAt = member.stack.events.find(({ previous }) => previous === 'RUNNING')!.at
    expect(agentEndedAt - cancelledAt).toBeLessThan(LEASE_MS / 3 + 2000)
    expect(member.worker.metrics).toMatchObject({ held: 0, accepted: 0, lost: 1 })
  })

  test('a drained node finishes its sessions and leaves', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url, nodeId: 'draining' })
    const id = await submit(client, `${twoCalls}; sleep 1`)
    await until('it runs', () => isRunning(member))
    await client.drainNode({ params: { node_id: 'draining' } })
    await member.worker.ended
    expect((await resultsOf(client, id))[0]).toMatchObject({ status: 'COMPLETED' })
    await expect(client.getNode({ params: { node_id: 'draining' } })).rejects.toMatchObject({
      code: 'request.not-found',
    })
  })

  test('a late result of a lost lease is rejected, and the result of the other node is kept', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url, nodeId: 'cut-off' })
    const id = await submit(client, `${twoCalls}; sleep 1`)
    await until('it runs', () => isRunning(member))
    member.line.cut()
    const other = await TestNode.join(client, 'other')
    const order = await pollLease(other)
    expect(order).toMatchObject({ attempt: 2 })
    expect(await other.complete(order)).toMatchObject({ kind: 'accepted' })
    await until('it has ended', () => member.worker.metrics.undelivered === 1)
    member.line.mend()
    await until('it is dropped', () => member.worker.metrics.held === 0)
    expect(member.worker.metrics).toMatchObject({ accepted: 0, lost: 1 })
    const { attempts } = await sessionOf(client, id)
    expect(attempts.map(({ ending }) => ending)).toEqual(['lost', 'accepted'])
  })

  test('a session that is leased again while its first attempt still runs on the node starts with an empty record', async () => {
    const { server, client } = test0
    await using member = await WorkerStack.start({ url: server.url, nodeId: 'twice' })
    const id = await submit(client, `${twoCalls}; sleep 7`)
    await until('it runs', () => isRunning(member))
    await sleep(1000)
    member.line.cut()
    await until(
      'it is lost',
      async () => (await sessionOf(client, id)).attempts.length > 1 || (await sessionOf(client, id)).attempt === 2,
    )
    member.line.mend()
    const [result] = await resultsOf(client, id)
    expect(result).toMatchObject({ status: 'COMPLETED', metadata: { polar: { attempt: 2 } } })
    expect(callsOf(result!)).toBe(2)
    expect(result!.trajectory.metadata).toMatchObject({ record_count: 2, is_complete: true })
  })
})

test('sessions that end during a server outage are delivered after it', { timeout: 120_000 }, async () => {
  const dir = join(scratch, 'outage')
  const options = { database: { dir: join(dir, 'database') }, filesDir: join(dir, 'files'), leaseMs: LEASE_MS }
  let before: TestServer | undefined = await startTestServer(options)
  const url = before.server.url
  const listen = { host: '127.0.0.1', port: Number(new URL(url).port) }
  await using member = await WorkerStack.start({ url })
  const id = await submit(before.client, `${twoCalls}; sleep 1`, { num_samples: 2 })
  await until('they run', () => isRunning(member, 2))
  await before[Symbol.asyncDispose]()
  before = undefined
  await until('they have ended', () => member.worker.metrics.undelivered === 2)
  await sleep(2 * LEASE_MS)
  await using after = await startTestServer({ ...options, listen })
  const results = await resultsOf(after.client, id)
  // Leases do not expire while no server runs.
  expect(results.map(({ status, metadata }) => [status, metadata['polar']])).toMatchObject([
    ['COMPLETED', { attempt: 1 }],
    ['COMPLETED', { attempt: 1 }],
  ])
})

interface WorkerProcess {
  child: ChildProcess
  output: { session_id?: string; attempt?: number; status?: string }[]
  has(line: string): boolean
}

const started: ChildProcess[] = []
afterEach(() => {
  for (const child of started.splice(0)) child.kill('SIGKILL')
})

async function startProcess(options: WorkerStackOptions): Promise<WorkerProcess> {
  const child = spawn(process.execPath, [WORKER_PROCESS, JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const output: unknown[] = []
  createInterface({ input: child.stdout }).on('line', (line) => output.push(JSON.parse(line)))
  started.push(child)
  await until('the node is ready', () => output.includes('ready') || child.exitCode !== null)
  return { child, output: output as WorkerProcess['output'], has: (line) => output.includes(line) }
}

describe('a node in its own process', { timeout: 180_000 }, () => {
  let test0: TestServer
  beforeAll(async () => {
    // Longer than a process start on a busy machine, so that no lease expires in these tests.
    test0 = await startTestServer({ leaseMs: 120_000 })
  }, 60_000)
  afterAll(() => test0?.[Symbol.asyncDispose]())

  test('kill -9 while an agent runs: the captured calls are delivered, and the session is repeated at once', async () => {
    const { server, client } = test0
    const options = { url: server.url, nodeId: 'killed', dir: join(scratch, 'killed') }
    const first = await startProcess(options)
    const id = await submit(client, `${twoCalls}; sleep 6`)
    await until('it runs', () => first.output.some(({ status }) => status === 'RUNNING'))
    const { session_id } = await sessionOf(client, id)
    const calls = createCallLogReader({ dir: join(options.dir, 'sessions') })
    await until('it has called', async () => {
      const { turns } = await calls.load(session_id, { salvage: true })
      return turns.filter(({ response }) => response !== undefined).length === 2
    })
    first.child.kill('SIGKILL')
    await once(first.child, 'exit')
    const second = await startProcess(options)
    const [result] = await resultsOf(client, id)
    expect(result).toMatchObject({ status: 'COMPLETED', metadata: { polar: { attempt: 2 } } })
    expect(callsOf(result!)).toBe(2)
    const { attempts } = await sessionOf(client, id)
    expect(attempts).toMatchObject([{ failure: { code: 'session.node-lost' } }, { ending: 'accepted' }])
    second.child.kill('SIGTERM')
    await once(second.child, 'exit')
    expect(second.has('ended')).toBe(true)
    expect(second.child.exitCode).toBe(0)
  })

  test('an undelivered result of a stopped node is delivered unchanged after its restart', async () => {
    const { server, client } = test0
    const dir = join(scratch, 'undelivered')
    // The node cannot deliver, since its connection to the server is cut.
    const member = await WorkerStack.start({ url: server.url, nodeId: 'undelivered', dir })
    const id = await submit(client, `${twoCalls}; sleep 1`)
    await until('it runs', () => isRunning(member))
    member.line.cut()
    await until('it has ended', () => member.worker.metrics.undelivered === 1)
    await member.worker.release()
    await member.stack[Symbol.asyncDispose]()
    const [sessionId] = await readdir(join(dir, 'sessions'))
    expect(JSON.parse(await readFile(join(dir, 'sessions', sessionId!, 'outcome.json'), 'utf8'))).toMatchObject({
      status: 'COMPLETED',
    })
    const second = await startProcess({ url: server.url, nodeId: 'undelivered', dir })
    const [result] = await resultsOf(client, id)
    expect(result).toMatchObject({ status: 'COMPLETED', metadata: { polar: { attempt: 1 } } })
    second.child.kill('SIGTERM')
    await once(second.child, 'exit')
  })

  test('a second SIGTERM releases running sessions at once, and another node leases them', async () => {
    const { server, client } = test0
    const first = await startProcess({ url: server.url, nodeId: 'stopped', dir: join(scratch, 'stopped') })
    const id = await submit(client, `${twoCalls}; sleep 600`)
    await until('it runs', () => first.output.some(({ status }) => status === 'RUNNING'))
    first.child.kill('SIGTERM')
    await sleep(500)
    expect(first.child.exitCode).toBeNull()
    first.child.kill('SIGTERM')
    const other = await TestNode.join(client, 'heir')
    const order = await pollLease(other)
    expect(order).toMatchObject({ attempt: 2 })
    await once(first.child, 'exit')
    expect(await other.complete(order)).toMatchObject({ kind: 'accepted' })
    expect((await sessionOf(client, id)).attempts.map(({ ending }) => ending)).toEqual(['released', 'accepted'])
  })
})
