/**
 * What a server costs a node: sessions that do nothing, submitted over HTTP, leased, run, delivered and accepted, by one
 * node and by three, each party in a process of its own. The baseline is the same node without a server, in the same run.
 */
import { createClient, type Client } from '../src/client/client.ts'
import { NodeStack, orderOf, shellTask } from '../test/support/node-stack.ts'
import { Child, cpuMsOf } from './support/child.ts'
import { printTitledTable } from './support/table.ts'

const SESSIONS = 320
const SAMPLES = 16
const WIDTH = 8

const noOp = shellTask('true', { evaluator: { strategy: 'session_completed' } })

export async function benchServer(): Promise<void> {
  await using engine = await Child.start<{ url: string }>(new URL('support/engine-process.ts', import.meta.url))
  const alone = await rateAlone(engine.ready.url)
  const rows = [['without a server', alone.toFixed(0), '100 %', '', '']]
  for (const nodes of [1, 3]) {
    const { rate, server, node } = await rateWith(engine.ready.url, nodes)
    const name = `${nodes} ${nodes === 1 ? 'node' : 'nodes'} and a server`
    rows.push([name, rate.toFixed(0), `${((100 * rate) / alone).toFixed(0)} %`, server, node])
  }
  printTitledTable(
    `${SESSIONS} sessions that do nothing, ${WIDTH} at each stage of a node (target: near the node alone)`,
    [['', 'sessions/s', 'of alone', 'server, CPU each', 'node, CPU each'], ...rows],
  )
}

async function rateAlone(upstream: string): Promise<number> {
  const widths = { init: WIDTH, ready: WIDTH, run: WIDTH, postrun: WIDTH, backlog: WIDTH }
  await using stack = await NodeStack.start({ upstream, widths, runtime: 'local' })
  await stack.node.submit(orderOf(noOp)).outcome
  const startedAt = performance.now()
  const outcomes = await Promise.all(Array.from({ length: SESSIONS }, () => stack.node.submit(orderOf(noOp)).outcome))
  const rate = SESSIONS / ((performance.now() - startedAt) / 1000)
  const other = outcomes.find(({ status }) => status !== 'COMPLETED')
  if (other !== undefined) throw new Error(`a session ended ${other.status}: ${JSON.stringify(other.failure)}`)
  return rate
}

async function rateWith(upstream: string, count: number): Promise<{ rate: number; server: string; node: string }> {
  await using server = await Child.start<{ url: string }>(new URL('support/server-process.ts', import.meta.url))
  await using nodes = new AsyncDisposableStack()
  const pids: number[] = []
  for (let index = 0; index < count; index++) {
    const args = [server.ready.url, upstream, `node-${index}`, String(WIDTH)]
    const child = await Child.start(new URL('support/worker-process.ts', import.meta.url), args)
    nodes.use(child)
    pids.push(child.pid)
  }
  const client = createClient({ baseUrl: server.ready.url })
  await runTasks(client, 'warm', 1)
  const before = await cpuOf(server.pid, pids)
  const startedAt = performance.now()
  await runTasks(client, 'timed', SESSIONS / SAMPLES)
  const seconds = (performance.now() - startedAt) / 1000
  const after = await cpuOf(server.pid, pids)
  return {
    rate: SESSIONS / seconds,
    server: `${((after.server - before.server) / SESSIONS).toFixed(1)} ms`,
    node: `${((after.nodes - before.nodes) / SESSIONS).toFixed(1)} ms`,
  }
}

async function cpuOf(server: number, nodes: readonly number[]): Promise<{ server: number; nodes: number }> {
  const used = await Promise.all(nodes.map((pid) => cpuMsOf(pid)))
  return { server: (await cpuMsOf(server)) ?? NaN, nodes: used.reduce<number>((sum, ms) => sum + (ms ?? NaN), 0) }
}

/** Resolves when the trainer has all the results. */
async function runTasks(client: Client, prefix: string, count: number): Promise<void> {
  const ids = Array.from({ length: count }, (_, index) => `${prefix}-${index}`)
  const tasks = ids.map((task_id) => ({ ...noOp, task_id, num_samples: SAMPLES }))
  await client.submitBatch({ body: { tasks } })
  await Promise.all(
    ids.map(async (id) => {
      for (;;) {
        const task = await client.getTask({ params: { task_id: id }, query: { wait: 60 } })
        if (task.status === 'running') continue
        const other = task.results.find(({ status }) => status !== 'COMPLETED')
        if (other !== undefined || task.results.length !== SAMPLES) throw new Error(`${id}: ${JSON.stringify(other)}`)
        return
      }
    }),
  )
}
