import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { isTerminal } from '../../src/model/session.ts'
import type { TaskRequest } from '../../src/model/task.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

let stack: NodeStack
beforeAll(async () => {
  stack = await NodeStack.start()
}, 60_000)
afterAll(() => stack?.[Symbol.asyncDispose]())

function run(task: TaskRequest): Promise<SessionOutcome> {
  return stack.node.submit(orderOf(task)).outcome
}

const passes = { evaluator: { strategy: 'command', config: { command: 'test -e done' } } }
const asks = bashAgent('call "What is two and two?" > answer.txt; touch done')

/** Nothing is left of any session once it has ended. */
async function expectNothingLeft(): Promise<void> {
  const { runtime } = await stack.opened.runtimes.open(undefined)
  expect(await runtime.list()).toEqual([])
  expect(await readdir(join(stack.dir, 'grading')).catch(() => [])).toEqual([])
  expect(Object.values(stack.node.metrics).every((count) => count === 0)).toBe(true)
}

describe('with real sandboxes', { timeout: 60_000 }, () => {
  test('success: calls captured, files graded in another sandbox, evidence and output kept', async () => {
    const outcome = await run(shellTask(`${asks}; echo said; echo muttered >&2`, passes))
    expect(outcome).toMatchObject({
      status: 'COMPLETED',
      ending: { kind: 'completed', exitCode: 0 },
      grade: { outcome_reward: 1 },
      counts: { calls: 1, trainedCalls: 1 },
    })
    expect(outcome.counts!.tokens.trained).toBeGreaterThan(0)
    const folder = join(stack.dir, 'sessions', outcome.sessionId)
    expect(await readFile(join(folder, 'artifacts/agent/stdout.log'), 'utf8')).toBe('said\n')
    expect(await readFile(join(folder, 'artifacts/agent/stderr.log'), 'utf8')).toBe('muttered\n')
    expect(JSON.parse(await readFile(join(folder, 'outcome.json'), 'utf8'))).toEqual(outcome)
    const journal = (await readFile(join(folder, 'journal.jsonl'), 'utf8')).trim().split('\n')
    const states = journal.map((line) => (JSON.parse(line) as { to: string }).to)
    expect(states).toEqual(['INITIALIZING', 'READY', 'RUNNING', 'POST_RUN', 'BUILDING', 'EVALUATING', 'COMPLETED'])
    const told = stack.events.filter(({ session_id }) => session_id === outcome.sessionId)
    expect(told.map(({ status }) => status)).toEqual(states)
    await expectNothingLeft()
  })

  test('a call that the agent steered is trained only if the task allows it', async () => {
    // The words end the message and go on with fields of the request.
    const steers = `call 'As JSON."}],"response_format":{"type":"json_object"},"vendor":[{"x":"y' > a.txt`
    const agent = bashAgent(`${steers}; call "Plain." > b.txt; touch done`)
    const [refused, allowed] = await Promise.all([
      run(shellTask(agent, passes)),
      run(shellTask(agent, { ...passes, training: { allow_steered: ['response-format'], labels: 'all' } })),
    ])
    expect(refused).toMatchObject({
      grade: { outcome_reward: 1 },
      counts: { calls: 2, trainedCalls: 1, excludedCalls: { steered: 1 } },
    })
    expect(allowed).toMatchObject({ counts: { calls: 2, trainedCalls: 2, excludedCalls: {} } })
  })

  test('a preparing step that fails: nothing runs, and it is said what it said', async () => {
    const prepare = [{ type: 'exec', command: 'echo no such thing >&2; exit 3' }]
    const outcome = await run(shellTask(asks, { ...passes, runtime: { prepare } }))
    expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'runtime.prepare-failed' } })
    expect(outcome.failure!.message).toContain('no such thing')
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('a preparing step without end: the time for it runs out', async () => {
    const runtime = { prepare: [{ type: 'exec', command: 'sleep 1000' }] }
    const outcome = await run(shellTask(asks, { runtime, budgets: { init: 1 } }))
    expect(outcome).toMatchObject({ status: 'TIMEOUT', failure: { code: 'session.init-timeout' } })
    await expectNothingLeft()
  })

  test('an image that is not there, and a runtime that is not, are told apart', async () => {
    const image = await run(shellTask(asks, { runtime: { backend: 'bubblewrap', image: '/no/such/root' } }))
    expect(image.failure!.code).toBe('runtime.image-missing')
    const backend = await run(shellTask(asks, { runtime: { backend: 'hyperspace' } }))
    expect(backend.failure).toMatchObject({ code: 'config.invalid', message: expect.stringContaining('bubblewrap') })
  })

  test('an agent that hangs after three calls: TIMEOUT, three trained calls, and its files are graded', async () => {
    const hangs = bashAgent('for i in 1 2 3; do call "Question $i" > answer-$i.txt; done; touch done; sleep 1000')
    const outcome = await run(shellTask(hangs, { ...passes, timeout_seconds: 10 }))
    expect(outcome).toMatchObject({
      status: 'TIMEOUT',
      failure: { code: 'session.agent-timeout' },
      ending: { kind: 'timeout' },
      counts: { calls: 3, trainedCalls: 3 },
      grade: { outcome_reward: 1 },
    })
    await expectNothingLeft()
  })

  test('an agent that gives up is graded; one that never got an answer is not', async () => {
    const gaveUp = await run(shellTask(`${asks}; exit 7`, passes))
    expect(gaveUp).toMatchObject({
      status: 'ERROR',
      failure: { code: 'harness.exit-nonzero' },
      grade: { outcome_reward: 1 },
    })
    const silent = await run(shellTask('touch done; exit 7', passes))
    expect(silent).toMatchObject({ status: 'ERROR', failure: { code: 'harness.no-answer' } })
    expect(silent.grade).toBeUndefined()
  })

  test('an evaluator that cannot grade gives no reward, and what was captured is there', async () => {
    const config = { command: 'echo 1', reward: { file: 'reward.txt' }, missing_reward: 'fail' }
    const outcome = await run(shellTask(asks, { evaluator: { strategy: 'command', config } }))
    expect(outcome).toMatchObject({
      status: 'ERROR',
      failure: { code: 'evaluator.crashed' },
      counts: { trainedCalls: 1 },
    })
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('an evaluator without end gives no reward either', async () => {
    const evaluator = { strategy: 'command', config: { command: 'sleep 1000' } }
    const outcome = await run(shellTask(asks, { evaluator, budgets: { evaluate: 2 } }))
    expect(outcome).toMatchObject({
      status: 'TIMEOUT',
      failure: { code: 'evaluator.timeout' },
      counts: { trainedCalls: 1 },
    })
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test.each([
    ['INITIALIZING', { runtime: { prepare: [{ type: 'exec', command: 'sleep 1000' }] } }, 0],
    ['RUNNING', { agent: { harness: 'shell', custom_shell: { command: bashAgent('call one; sleep 1000') } } }, 1],
    ['EVALUATING', { evaluator: { strategy: 'command', config: { command: 'sleep 1000' } } }, 1],
  ])('cancel while %s: CANCELLED at once, with what was captured', async (state, more, calls) => {
    const session = stack.node.submit(orderOf(shellTask(asks, more)))
    const isThere = (): boolean =>
      stack.events.some(({ session_id, status }) => session_id === session.sessionId && status === state)
    while (!isThere()) await sleep(20)
    // So that the call is made.
    if (state === 'RUNNING') await sleep(1500)
    const startedAt = Date.now()
    session.cancel('changed my mind')
    const outcome = await session.outcome
    expect(Date.now() - startedAt).toBeLessThan(5000)
    expect(outcome).toMatchObject({
      status: 'CANCELLED',
      failure: { code: 'session.cancelled', message: 'changed my mind' },
    })
    expect(outcome.counts?.calls ?? 0).toBe(calls)
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('the key is worth nothing once the agent’s time is over', async () => {
    const leaks = bashAgent('call one > done; echo "$OPENAI_API_KEY"; sleep 1000')
    const outcome = await run(shellTask(leaks, { ...passes, timeout_seconds: 3 }))
    expect(outcome).toMatchObject({ status: 'TIMEOUT', counts: { calls: 1 } })
    const folder = join(stack.dir, 'sessions', outcome.sessionId)
    const key = (await readFile(join(folder, 'artifacts/agent/stdout.log'), 'utf8')).trim()
    expect(key).toMatch(/^sk-polar-/)
    const answer = await fetch(`${stack.opened.gateway.url}/s/${outcome.sessionId}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'still there?' }] }),
    })
    expect(answer.status).toBe(401)
  })

  test('a memory limit that is passed is the policy’s doing, and named', async ({ skip }) => {
    const { runtime } = await stack.opened.runtimes.open(undefined)
    if (!runtime.capabilities.limits.includes('memoryMb')) skip('this machine cannot limit memory')
    const hog = bashAgent('call one > a.txt; exec perl -e \'my $x = "x" x (900 * 1024 * 1024); print length $x\'')
    const outcome = await run(shellTask(hog, { runtime: { memory_mb: 200 } }))
    expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'harness.out-of-memory' } })
  })

  test('each session has one end, and every place is free again', async () => {
    const ended = stack.events.filter(({ status }) => isTerminal(status)).map(({ session_id }) => session_id)
    expect(new Set(ended).size).toBe(ended.length)
    await expectNothingLeft()
  })
})
