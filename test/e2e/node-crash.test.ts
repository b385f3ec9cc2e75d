import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, mkdtemp, readdir, readFile, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import type { SessionStatus } from '../../src/model/session.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { ANSWER_SCRIPT } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

const evaluator = join(import.meta.dirname, '../support/modules/counting-evaluator.ts')
const nodeProcess = join(import.meta.dirname, '../support/node-process.ts')
/** Set in the environment of every process of the agent, so that surviving processes can be found. */
const MARK = `polar-crash-${process.pid}`

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-crash-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

/** The session state in which the node is killed, the delay after its begin, and the expected result. */
const cases: [state: SessionStatus, delayMs: number, expected: 'repeated' | 'partial' | 'already graded'][] = [
  ['INITIALIZING', 0, 'repeated'],
  ['INITIALIZING', 700, 'repeated'],
  ['READY', 0, 'repeated'],
  ['RUNNING', 0, 'partial'],
  ['RUNNING', 3000, 'partial'],
  ['POST_RUN', 0, 'partial'],
  ['BUILDING', 0, 'partial'],
  ['EVALUATING', 0, 'partial'],
  ['EVALUATING', 1000, 'partial'],
  ['COMPLETED', 0, 'already graded'],
]

test.each(cases)(
  'kill -9 %s + %d ms: the session is %s, and no process or sandbox remains',
  async (state, delayMs, expected) => {
    const dir = join(scratch, `${state}-${delayMs}`)
    const log = `${dir}.graded`
    const agent = bashAgent(
      `export MARK=${MARK}; call one > a; call two > b; ${state === 'RUNNING' ? 'sleep 600' : 'true'}`,
    )
    const slow = state === 'INITIALIZING' && delayMs > 0
    const task = shellTask(agent, {
      runtime: { prepare: [{ type: 'exec', command: `MARK=${MARK} sleep ${slow ? 3 : 0}` }] },
      evaluator: { strategy: evaluator, config: { log, seconds: delayMs > 0 ? 3 : 0 } },
    })
    const order = orderOf(task)
    await runUntilKilled([dir, state, String(delayMs), JSON.stringify(order), evaluator])

    await using stack = await NodeStack.start({ dir, nodeId: 'crashing', modules: [evaluator], script: ANSWER_SCRIPT })
    const [recovered] = stack.node.recovered
    expect(stack.node.recovered).toHaveLength(1)
    // All processes of the killed node end before the first session of its successor starts.
    if (expected !== 'repeated') await expectNoProcess()
    let outcome: SessionOutcome
    if (expected === 'repeated') {
      expect(recovered).toMatchObject({ next: 'again', order: { sessionId: order.sessionId, attempt: 2 } })
      outcome = await stack.node.sessions[0]!.outcome
      expect(outcome).toMatchObject({ status: 'COMPLETED', attempt: 2, grade: { outcome_reward: 0.5 } })
    } else {
      expect(recovered).toMatchObject({ next: 'ended' })
      outcome = (recovered as { outcome: SessionOutcome }).outcome
      expect(stack.node.sessions).toEqual([])
      if (expected === 'partial') {
        expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'session.node-lost' } })
        expect(outcome.grade).toBeUndefined()
      } else expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 0.5 } })
    }
    // Captured calls are kept and counted.
    const record = await createCallLogReader({ dir: join(dir, 'sessions') }).load(order.sessionId, { salvage: true })
    const captured = record.turns.filter(({ response }) => response !== undefined).length
    if (state !== 'RUNNING' || delayMs > 0) expect(captured).toBe(2)
    expect(outcome.counts?.calls ?? 0).toBe(captured)
    const graded = (await readFile(log, 'utf8').catch(() => '')).split('\n').filter(Boolean)
    expect(graded.length).toBeLessThanOrEqual(1)

    // The recovery is complete: a third node recovers nothing.
    await stack[Symbol.asyncDispose]()
    await using third = await NodeStack.start({ dir, nodeId: 'crashing', modules: [evaluator], script: ANSWER_SCRIPT })
    expect(third.node.recovered).toEqual([])
    const { runtime } = await third.opened.runtimes.open(undefined)
    expect(await runtime.list()).toEqual([])
    expect(await readdir(join(dir, 'grading')).catch(() => [])).toEqual([])
    await expectNoProcess()
  },
  90_000,
)

async function runUntilKilled(args: string[]): Promise<void> {
  const child = spawn(process.execPath, [nodeProcess, ...args], { stdio: ['ignore', 'inherit', 'inherit'] })
  const [, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
  expect(signal).toBe('SIGKILL')
}

/** Expects that no process of the agent or of its preparation remains on this machine. */
async function expectNoProcess(): Promise<void> {
  const found: string[] = []
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue
    const environ = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '')
    if (environ.split('\0').includes(`MARK=${MARK}`)) found.push(pid)
  }
  expect(found).toEqual([])
}

test('two nodes cannot use the same folder', async () => {
  const dir = join(scratch, 'shared')
  await using first = await NodeStack.start({ dir, script: ANSWER_SCRIPT })
  await access(join(first.dir, 'node.lock'))
  await expect(NodeStack.start({ dir, script: ANSWER_SCRIPT })).rejects.toThrow(/belongs to process/)
})
