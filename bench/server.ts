/**
 * Measures the cost of a server: sessions that do nothing, submitted over HTTP, leased, run, delivered and accepted, by one
 * node and by three, each in a separate process. The baseline is the same node without a server, in the same run.
 */
import { NodeStack, orderOf } from '../test/support/node-stack.ts'
import { startEngineProcess } from './support/child.ts'
import { noOp, openServerCluster, runTasks, timeTasks, WIDTH } from './support/server-cluster.ts'
import { printTitledTable } from './support/table.ts'

const SESSIONS = 320

export async function benchServer(): Promise<void> {
  await using engine = await startEngineProcess()
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
  await using cluster = await openServerCluster(upstream, count)
  await runTasks(cluster.client, 'warm', 1)
  const { seconds, serverMs, nodesMs } = await timeTasks(cluster, SESSIONS)
  return { rate: SESSIONS / seconds, server: `${serverMs.toFixed(1)} ms`, node: `${nodesMs.toFixed(1)} ms` }
}
