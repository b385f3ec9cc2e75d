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
const callsModel = bashAgent('call "What is two and two?" > answer.txt; touch done')

/** Expects no sandbox, grading folder or occupied slot after all sessions have ended. */
async function expectNothingLeft(): Promise<void> {
  const { runtime } = await stack.opened.runtimes.open(undefined)
  expect(await runtime.list()).toEqual([])
  expect(await readdir(join(stack.dir, 'grading')).catch(() => [])).toEqual([])
  expect(Object.values(stack.node.metrics).every((count) => count === 0)).toBe(true)
}

describe('with real sandboxes', { timeout: 60_000 }, () => {
  test('a successful session: calls are captured, files are graded in another sandbox, evidence and output are stored', async () => {
    const outcome = await run(shellTask(`${callsModel}; echo said; echo muttered >&2`, passes))
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
    const events = stack.events.filter(({ session_id }) => session_id === outcome.sessionId)
    expect(events.map(({ status }) => status)).toEqual(states)
    await expectNothingLeft()
  })

  test('a call that the agent steered is trained only if the task allows the steering', async () => {
    // The text closes the message and appends fields to the request.
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

  test('a failed preparation step: the agent does not run, and the failure contains the output of the step', async () => {
    const prepare = [{ type: 'exec', command: 'echo no such thing >&2; exit 3' }]
    const outcome = await run(shellTask(callsModel, { ...passes, runtime: { prepare } }))
    expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'runtime.prepare-failed' } })
    expect(outcome.failure!.message).toContain('no such thing')
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('an endless preparation step: the session fails with session.init-timeout', async () => {
    const runtime = { prepare: [{ type: 'exec', command: 'sleep 1000' }] }
    const outcome = await run(shellTask(callsModel, { runtime, budgets: { init: 1 } }))
    expect(outcome).toMatchObject({ status: 'TIMEOUT', failure: { code: 'session.init-timeout' } })
    await expectNothingLeft()
  })

  test('a missing image and an unknown runtime have different failure codes', async () => {
    const image = await run(shellTask(callsModel, { runtime: { backend: 'bubblewrap', image: '/no/such/root' } }))
    expect(image.failure!.code).toBe('runtime.image-missing')
    const backend = await run(shellTask(callsModel, { runtime: { backend: 'hyperspace' } }))
    expect(backend.failure).toMatchObject({ code: 'config.invalid', message: expect.stringContaining('bubblewrap') })
  })

  test('an agent that hangs after three calls: status TIMEOUT, three trained calls, and its files are graded', async () => {
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

  test('an agent that exits nonzero is graded; an agent without any model answer is not', async () => {
    const gaveUp = await run(shellTask(`${callsModel}; exit 7`, passes))
    expect(gaveUp).toMatchObject({
      status: 'ERROR',
      failure: { code: 'harness.exit-nonzero' },
      grade: { outcome_reward: 1 },
    })
    const silent = await run(shellTask('touch done; exit 7', passes))
    expect(silent).toMatchObject({ status: 'ERROR', failure: { code: 'harness.no-answer' } })
    expect(silent.grade).toBeUndefined()
  })

  test('a failed evaluator gives no reward, and the captured calls are kept', async () => {
    const config = { command: 'echo 1', reward: { file: 'reward.txt' }, missing_reward: 'fail' }
    const outcome = await run(shellTask(callsModel, { evaluator: { strategy: 'command', config } }))
    expect(outcome).toMatchObject({
      status: 'ERROR',
      failure: { code: 'evaluator.crashed' },
      counts: { trainedCalls: 1 },
    })
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('an evaluator that exceeds its time limit gives no reward', async () => {
    const evaluator = { strategy: 'command', config: { command: 'sleep 1000' } }
    const outcome = await run(shellTask(callsModel, { evaluator, budgets: { evaluate: 2 } }))
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
  ])('cancel while %s: the session is CANCELLED at once and keeps its captured calls', async (state, more, calls) => {
    const session = stack.node.submit(orderOf(shellTask(callsModel, more)))
    const isReached = (): boolean =>
      stack.events.some(({ session_id, status }) => session_id === session.sessionId && status === state)
    while (!isReached()) await sleep(20)
    // The record of an ended call contains its finish reason.
    const log = join(stack.dir, 'sessions', session.sessionId, 'calls.plog')
    if (state === 'RUNNING') await expect.poll(() => readFile(log, 'latin1').catch(() => '')).toContain('finishReason')
    const startedAt = Date.now()
    session.cancel('changed my mind')
    const outcome = await session.outcome
    expect(Date.now() - startedAt).toBeLessThan(60_000)
    expect(outcome).toMatchObject({
      status: 'CANCELLED',
      failure: { code: 'session.cancelled', message: 'changed my mind' },
    })
    expect(outcome.counts?.calls ?? 0).toBe(calls)
    expect(outcome.grade).toBeUndefined()
    await expectNothingLeft()
  })

  test('the session key is rejected after the timeout of the agent', async () => {
    const leaks = bashAgent('call one > done; echo "$OPENAI_API_KEY"; sleep 1000')
    const outcome = await run(shellTask(leaks, { ...passes, timeout_seconds: 8 }))
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

  test('an exceeded memory limit fails the session with harness.out-of-memory', async ({ skip }) => {
    const { runtime } = await stack.opened.runtimes.open(undefined)
    if (!runtime.capabilities.limits.includes('memoryMb')) skip('this machine cannot limit memory')
    const hog = bashAgent('call one > a.txt; exec perl -e \'my $x = "x" x (900 * 1024 * 1024); print length $x\'')
    const outcome = await run(shellTask(hog, { runtime: { memory_mb: 200 } }))
    expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'harness.out-of-memory' } })
  })

  test('each session reaches exactly one final state, and every slot is free again', async () => {
    const ended = stack.events.filter(({ status }) => isTerminal(status)).map(({ session_id }) => session_id)
    expect(new Set(ended).size).toBe(ended.length)
    await expectNothingLeft()
  })
})
