/** A server and its nodes, each in a separate process, and a trainer that submits sessions that do nothing. */
import { type Client, createClient } from '../../src/client/client.ts'
import { shellTask } from '../../test/support/node-stack.ts'
import { Child, cpuMsOf } from './child.ts'

/** Sessions of one task. */
const SAMPLES = 16
/** Width of each stage of a node. */
export const WIDTH = 8

export const noOp = shellTask('true', { evaluator: { strategy: 'session_completed' } })

export interface ServerCluster extends AsyncDisposable {
  server: Child<{ url: string }>
  client: Client
  /** Processor time so far, of the server and of all nodes together. */
  cpuMs(): Promise<{ server: number; nodes: number }>
}

export async function openServerCluster(upstream: string, count: number): Promise<ServerCluster> {
  await using parts = new AsyncDisposableStack()
  const server = parts.use(await Child.start<{ url: string }>('server-process.ts'))
  const pids: number[] = []
  for (let index = 0; index < count; index++) {
    const args = [server.ready.url, upstream, `node-${index}`, String(WIDTH)]
    pids.push(parts.use(await Child.start('worker-process.ts', args)).pid)
  }
  const kept = parts.move()
  return {
    server,
    client: createClient({ baseUrl: server.ready.url }),
    async cpuMs() {
      const used = await Promise.all(pids.map((pid) => cpuMsOf(pid)))
      const nodes = used.reduce<number>((sum, ms) => sum + (ms ?? NaN), 0)
      return { server: (await cpuMsOf(server.pid)) ?? NaN, nodes }
    },
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  }
}

/** Resolves when the trainer has all the results. */
export async function runTasks(client: Client, prefix: string, count: number): Promise<void> {
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

/** Runs the tasks of `sessions` sessions and measures them: duration, and processor milliseconds for each session. */
export async function timeTasks(
  { client, cpuMs }: ServerCluster,
  sessions: number,
): Promise<{ seconds: number; serverMs: number; nodesMs: number }> {
  const before = await cpuMs()
  const startedAt = performance.now()
  await runTasks(client, 'timed', sessions / SAMPLES)
  const seconds = (performance.now() - startedAt) / 1000
  const after = await cpuMs()
  return {
    seconds,
    serverMs: (after.server - before.server) / sessions,
    nodesMs: (after.nodes - before.nodes) / sessions,
  }
}
