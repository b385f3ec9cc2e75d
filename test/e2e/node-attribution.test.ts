import { readdirSync, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { isValid } from '../../src/model/refill.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

let stack: NodeStack
let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-attribution-'))
  const script = join(scratch, 'script.yaml')
  const broken = Array.from({ length: 50 }, () => ({ text: 'x', fault: { kind: 'status', status: 500 } }))
  await writeFile(script, JSON.stringify({ default: { text: 'fine' }, scenarios: { broken } }))
  await mkdir(join(scratch, 'tests'))
  await writeFile(join(scratch, 'tests/test.sh'), 'sh code; echo 1 > /logs/verifier/reward.txt')
  stack = await NodeStack.start({ script })
}, 60_000)
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

function run(agent: string, more: Record<string, unknown>): Promise<SessionOutcome> {
  return stack.node.submit(orderOf(shellTask(bashAgent(agent), more))).outcome
}
const command = (config: object) => ({ evaluator: { strategy: 'command', config } })
const harbor = (config: object) => ({
  evaluator: { strategy: 'harbor', config: { tests_dir: join(scratch, 'tests'), ...config } },
})

/** Expects a valid session with the lowest reward. */
function expectLowest(outcome: SessionOutcome, metadata: object = {}): void {
  expect(outcome, JSON.stringify(outcome.failure)).toMatchObject({ grade: { outcome_reward: 0, metadata } })
  expect(isValid(outcome)).toBe(true)
}

/** Kills each build process of this node, as the kernel's out-of-memory killer does. */
function killBuilds(): Disposable {
  const timer = setInterval(() => {
    for (const thread of readdirSync('/proc/self/task')) {
      const children = readFileSync(`/proc/self/task/${thread}/children`, 'utf8').trim().split(' ').filter(Boolean)
      for (const pid of children) {
        if (commandOf(pid).includes('build-process')) process.kill(Number(pid), 'SIGKILL')
      }
    }
  }, 10)
  return { [Symbol.dispose]: () => clearInterval(timer) }
}

function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

describe('an agent cannot avoid its reward', { timeout: 120_000 }, () => {
  test('by ending the graded code with exit code 127', async () => {
    expectLowest(await run('call one > a; echo exit 127 > code', command({ command: 'sh code' })), { exit_code: 127 })
  })

  test('by making the copy of its files fail', async () => {
    // A path that is longer than system calls accept.
    const agent = `call one > a; mkdir deep; cd deep
      for i in $(seq 80); do mkdir ${'d'.repeat(250)}; cd ${'d'.repeat(250)} || break; done; echo x > file`
    const outcome = await run(agent, command({ command: 'true' }))
    expect(outcome.grade?.outcome_reward, JSON.stringify(outcome.failure)).toBeTypeOf('number')
    expect(isValid(outcome)).toBe(true)
  })

  test('by replacing the workspace with a file or a link', async () => {
    for (const trick of ['touch "$PWD"', 'ln -s /proc "$OLDPWD"', 'ln -s / "$OLDPWD"']) {
      const agent = `call one > a; w=$PWD; cd /; chmod -R 000 "$w"; rm -rf "$w"; OLDPWD=$w; PWD=$w; ${trick}; exit 0`
      const outcome = await run(agent, command({ command: 'test -e a && false' }))
      expectLowest(outcome)
    }
  })

  test('by making the reward folder unusable when the complete state is copied', async () => {
    for (const trick of ['ln -s /proc /logs', 'touch /logs']) {
      const outcome = await run(`call one > a; rm -rf /logs; ${trick}`, harbor({ state: 'everything' }))
      expect(outcome.grade?.outcome_reward, JSON.stringify(outcome.failure)).toBeTypeOf('number')
      expect(isValid(outcome)).toBe(true)
    }
  })

  test('by killing every process it sees, including its harness and the init process of the sandbox', async () => {
    const outcome = await run('call one > a; kill -9 1; kill -9 -1; kill -9 $$', command({ command: 'false' }))
    expectLowest(outcome)
  })

  test('by starting processes up to the process limit', async ({ skip }) => {
    const { runtime } = await stack.opened.runtimes.open(undefined)
    if (!runtime.capabilities.limits.includes('pids')) skip('this machine cannot limit the number of processes')
    const agent = "call one > a; sh -c 'while :; do sleep 1000 & done'; exit 1"
    expectLowest(await run(agent, { ...command({ command: 'false' }), runtime: { pids: 64 } }))
  })

  test('by making the grading exceed its time limit', async () => {
    const more = { ...command({ command: 'sh code' }), budgets: { evaluate: 10 } }
    expectLowest(await run("call one > a; echo 'sleep 600' > code", more), { failure: 'evaluator.timeout' })
  })

  test('by making calls that are too large to build', async () => {
    using _ = killBuilds()
    const outcome = await run('call one > a', command({ command: 'true' }))
    expectLowest(outcome, { failure: 'session.too-large', phase: 'build' })
    expect(outcome).toMatchObject({
      status: 'ERROR',
      failure: { code: 'session.too-large' },
      ending: { kind: 'completed' },
    })
    expect(outcome.artifacts.map(({ path }) => path)).toContain('evaluator/attribution.json')
  })

  test('by making a last call that the engine cannot answer', async () => {
    const outcome = await run('call one > a; call SCRIPT:broken > b; exit 3', command({ command: 'false' }))
    expectLowest(outcome)
    expect(outcome).toMatchObject({
      failure: { code: 'harness.exit-nonzero' },
      ending: { kind: 'failed', exitCode: 3 },
    })
  })
})

describe('a failure of infrastructure gives no reward', { timeout: 120_000 }, () => {
  function expectInfrastructureFailure(outcome: SessionOutcome, code: string): void {
    expect(outcome.grade).toBeUndefined()
    expect(outcome.failure?.code, outcome.failure?.message).toBe(code)
    expect(isValid(outcome)).toBe(false)
  }

  test('the engine fails for the first call', async () => {
    expectInfrastructureFailure(
      await run('call SCRIPT:broken > a; exit 1', command({ command: 'true' })),
      'upstream.failed',
    )
  })

  test('the sandbox of the grader cannot be prepared', async () => {
    const runtime = { prepare: [], eval_prepare: [{ type: 'exec', command: 'exit 3' }] }
    expectInfrastructureFailure(
      await run('call one > a', { ...command({ command: 'true' }), runtime }),
      'runtime.prepare-failed',
    )
  })

  test('the image of the grader lacks a program; exit code 127 caused by the agent still gets the lowest reward', async () => {
    const outcome = await run('call one > a; echo exit 127 > code', command({ command: 'sh code && no-such-program' }))
    expectLowest(outcome)
    const broken = await run('call one > a', command({ command: 'no-such-program' }))
    expectInfrastructureFailure(broken, 'evaluator.crashed')
  })

  test('files of the operator are missing: the agent does not run', async () => {
    const files = [{ source: join(scratch, 'missing'), target: 'x' }]
    const outcome = await run('call one > a', command({ command: 'true', files }))
    expectInfrastructureFailure(outcome, 'config.invalid')
    expect(outcome.counts).toBeUndefined()
    const tests = await run('call one > a', harbor({ tests_dir: scratch }))
    expectInfrastructureFailure(tests, 'config.invalid')
  })

  test('the grading service does not answer', async () => {
    const config = { url: 'http://127.0.0.1:9/', max_retries: 0 }
    expectInfrastructureFailure(
      await run('call one > a', { evaluator: { strategy: 'http', config } }),
      'evaluator.crashed',
    )
  })
})
