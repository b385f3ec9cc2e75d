/**
 * What a node makes of a machine: sessions that do nothing, how busy the places to run are while sandboxes are slow to
 * make, what a grader made early costs and gains, and what a session that sleeps holds. All with real sandboxes, a real
 * gateway and the call log. The baseline is a process of this machine, spawned in the same run.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createLimit } from '../src/lib/async/limit.ts'
import type { SessionOutcome } from '../src/model/session-outcome.ts'
import type { TaskRequest } from '../src/model/task.ts'
import type { StageWidths } from '../src/node/session/stages.ts'
import { NodeStack, orderOf, shellTask } from '../test/support/node-stack.ts'
import { startEngineProcess } from './support/child.ts'
import { readHeldMemory } from './support/memory.ts'
import { percentile } from './support/stats.ts'
import { printTitledTable } from './support/table.ts'

const NO_OPS = 400
const WIDTH = 8

/** An engine is never in the node's own process but on a laptop that tries things out. */
let upstream: string

export async function benchNode(): Promise<void> {
  await using engine = await startEngineProcess()
  upstream = engine.ready.url
  await benchNoOps()
  await benchUtilisation()
  await benchPrewarm()
  await benchSleepers()
}

function startNode(widths: StageWidths, runtime?: string): Promise<NodeStack> {
  return NodeStack.start({ upstream, widths, runtime })
}

function runAll(stack: NodeStack, tasks: readonly TaskRequest[]): Promise<SessionOutcome[]> {
  return Promise.all(tasks.map((task) => stack.node.submit(orderOf(task)).outcome))
}

function expectStatus(outcomes: readonly SessionOutcome[], status: string): void {
  const other = outcomes.find((outcome) => outcome.status !== status)
  if (other !== undefined) throw new Error(`a session ended ${other.status}: ${JSON.stringify(other.failure)}`)
}

async function benchNoOps(): Promise<void> {
  const widths = { init: WIDTH, ready: WIDTH, run: WIDTH, postrun: WIDTH, backlog: WIDTH }
  const limit = createLimit(WIDTH)
  const plainStart = performance.now()
  await Promise.all(
    Array.from({ length: NO_OPS }, () => limit(async () => void (await once(spawn('sh', ['-c', 'true']), 'exit')))),
  )
  const plain = NO_OPS / ((performance.now() - plainStart) / 1000)
  const rows: string[][] = []
  for (const runtime of ['local', 'bubblewrap']) {
    await using stack = await startNode(widths, runtime)
    const task = shellTask('true', { evaluator: { strategy: 'session_completed' } })
    expectStatus(await runAll(stack, [task, task]), 'COMPLETED')
    const startedAt = performance.now()
    const outcomes = await runAll(
      stack,
      Array.from({ length: NO_OPS }, () => task),
    )
    const rate = NO_OPS / ((performance.now() - startedAt) / 1000)
    expectStatus(outcomes, 'COMPLETED')
    rows.push([runtime, rate.toFixed(0), `${((100 * rate) / plain).toFixed(0)} %`])
  }
  printTitledTable(`${NO_OPS} sessions that do nothing, ${WIDTH} at each stage (target: 50/s on local)`, [
    ['', 'sessions/s', 'of plain sh -c true'],
    ['plain sh -c true', plain.toFixed(0), '100 %'],
    ...rows,
  ])
}

const RUN_SECONDS = 0.5

/** Preparing a sandbox takes three times as long as running in it, and no two tasks share their preparation. */
async function benchUtilisation(): Promise<void> {
  const measured: string[][] = []
  for (const [name, widths] of [
    ['READY on', { init: 16, ready: 4, run: 4, postrun: 4, backlog: 8 }],
    ['READY off, as many INIT', { init: 16, ready: 0, run: 4, postrun: 4, backlog: 8 }],
    ['READY off, INIT as wide as RUN', { init: 4, ready: 0, run: 4, postrun: 4, backlog: 8 }],
  ] satisfies [string, StageWidths][]) {
    await using stack = await startNode(widths, 'local')
    const outcomes = await runAll(
      stack,
      Array.from({ length: 80 }, (_, index) =>
        shellTask(`sleep ${RUN_SECONDS}`, {
          task_id: `task-${index}`,
          runtime: { prepare: [{ type: 'exec', command: `sleep ${3 * RUN_SECONDS}; : ${index}` }] },
        }),
      ),
    )
    expectStatus(outcomes, 'COMPLETED')
    const busy = busyPart(stack, widths.run)
    const waited = outcomes.map(({ timing }) => timing.ready_queue_ms ?? 0)
    measured.push([name, `${(100 * busy).toFixed(1)} %`, `${percentile(waited, 50).toFixed(0)} ms`])
  }
  printTitledTable('RUN slots in use while INIT takes 3x as long as RUN (target: 95 %)', [
    ['', 'busy', 'READY p50'],
    ...measured,
  ])
}

/** From the start of the first agent until no session is left for the next free slot. */
function busyPart({ events }: NodeStack, width: number): number {
  const starts = events.filter(({ status }) => status === 'RUNNING').map(({ at }) => at)
  const ends = events.filter(({ previous }) => previous === 'RUNNING').map(({ at }) => at)
  const [from, until] = [starts[width]!, starts.at(-1)!]
  let busy = 0
  const changes = [...starts.map((at) => ({ at, by: 1 })), ...ends.map((at) => ({ at, by: -1 }))]
  let [last, count] = [from, 0]
  for (const { at, by } of changes.sort((a, b) => a.at - b.at)) {
    const [begin, end] = [Math.max(last, from), Math.min(at, until)]
    if (end > begin) busy += (end - begin) * count
    count += by
    last = Math.max(at, from)
  }
  return busy / ((until - from) * width)
}

/** Repeats one task: after the first few sessions, graders are created while the agent still runs. */
async function benchPrewarm(): Promise<void> {
  const widths = { init: 2, ready: 0, run: 2, postrun: 2, backlog: 4 }
  await using stack = await startNode(widths)
  const task = shellTask('sleep 1', {
    runtime: { prepare: [{ type: 'exec', command: 'sleep 0.2' }] },
    evaluator: { strategy: 'command', config: { command: 'true' } },
  })
  const outcomes = await runAll(
    stack,
    Array.from({ length: 24 }, () => task),
  )
  expectStatus(outcomes, 'COMPLETED')
  const early = outcomes.filter(({ timing }) => timing.eval_prewarm_saved_ms != null)
  const late = outcomes.filter(({ timing }) => timing.eval_prewarm_saved_ms == null)
  const p50 = (from: readonly SessionOutcome[], key: 'eval_ms' | 'eval_prewarm_saved_ms' | 'eval_prewarm_idle_ms') =>
    `${percentile(
      from.map(({ timing }) => timing[key] ?? 0),
      50,
    ).toFixed(0)} ms`
  printTitledTable('A grader made early, when the agent is expected to end (p50)', [
    ['', 'sessions', 'grading', 'gained', 'stood idle'],
    ['made when needed', String(late.length), p50(late, 'eval_ms'), '-', '-'],
    [
      'made early',
      String(early.length),
      p50(early, 'eval_ms'),
      p50(early, 'eval_prewarm_saved_ms'),
      p50(early, 'eval_prewarm_idle_ms'),
    ],
  ])
}

const SLEEPERS = 200

async function benchSleepers(): Promise<void> {
  const rows: string[][] = []
  for (const runtime of ['local', 'bubblewrap']) {
    const widths = { init: 8, ready: 8, run: SLEEPERS, postrun: 8, backlog: SLEEPERS }
    await using stack = await startNode(widths, runtime)
    const before = await readHeldMemory()
    const startedAt = performance.now()
    const sessions = Array.from({ length: SLEEPERS }, () => stack.node.submit(orderOf(shellTask('sleep 600'))))
    while (stack.node.metrics.run_inflight < SLEEPERS) {
      if (performance.now() - startedAt > 120_000) throw new Error('not all sessions started')
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    const upMs = performance.now() - startedAt
    const after = await readHeldMemory()
    const stopAt = performance.now()
    for (const session of sessions) session.cancel('enough')
    await Promise.all(sessions.map(({ outcome }) => outcome))
    const kb = (bytes: number): string => `${(bytes / SLEEPERS / 1024).toFixed(0)} KB`
    rows.push([
      runtime,
      `${(upMs / 1000).toFixed(1)} s`,
      kb(after.held - before.held),
      kb(after.resident - before.resident),
      `${((performance.now() - stopAt) / 1000).toFixed(1)} s`,
    ])
  }
  printTitledTable(`${SLEEPERS} sessions that sleep at the same time`, [
    ['', 'all running after', 'held by the node, each', 'resident, each', 'all cancelled in'],
    ...rows,
  ])
}
