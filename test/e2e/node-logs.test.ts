import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { harnessPlaces } from '../../src/cli/harness-places.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { findHarness } from '../../src/node/find-harness.ts'
import { pi } from '../../src/node/harnesses/pi.ts'
import { NodeStack, orderOf, taskOf } from '../support/node-stack.ts'

const hello = fileURLToPath(new URL('../../examples/scripts/hello.yaml', import.meta.url))
const task = {
  instruction: 'SCRIPT:hello Write hello.py and run it.',
  agent: { harness: 'pi' },
  evaluator: { strategy: 'command', config: { command: 'grep -q "Hello, world" hello.py' } },
}

let stack: NodeStack
beforeAll(async () => {
  stack = await NodeStack.start({ script: hello })
})
afterAll(() => stack?.[Symbol.asyncDispose]())

async function skipWithoutPi(context: TestContext): Promise<void> {
  const found = await findHarness(pi, harnessPlaces(undefined, process.env))
  if (found?.bundle === undefined) context.skip('pi is not installed: npm run polar -- harness install pi')
}

async function expectLog({ sessionId, artifacts }: SessionOutcome, told: string): Promise<void> {
  const log = artifacts.find(({ path }) => path.startsWith('harness/'))
  expect(artifacts.map(({ path }) => path)).toContainEqual(expect.stringMatching(/^harness\/.+\.jsonl$/))
  const text = await readFile(join(stack.dir, 'sessions', sessionId, 'artifacts', log!.path), 'utf8')
  expect(text).toContain(told)
  expect(text.length).toBe(log!.bytes)
}

describe('what pi wrote about its own run', () => {
  test.each(['bubblewrap', 'local'])('is kept with the session (%s)', async (backend, ...rest) => {
    const context = rest[0] as unknown as TestContext
    await skipWithoutPi(context)
    const outcome = await stack.node.submit(orderOf(taskOf({ ...task, runtime: { backend } }))).outcome
    if (outcome.failure?.code === 'runtime.unavailable') return context.skip(outcome.failure.message)
    expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 }, counts: { calls: 3 } })
    await expectLog(outcome, 'hello.py greets the world')
    expect(await readdir(join(stack.dir, 'grading'))).toEqual([])
  })

  test('is kept when its time ran out as well', async (context) => {
    await skipWithoutPi(context)
    const slow = 'Write a file. SCRIPT:hello Then wait.'
    const outcome = await stack.node.submit(
      orderOf(taskOf({ ...task, instruction: slow, budgets: { agent: 60 }, timeout_seconds: 60 })),
    ).outcome
    await expectLog(outcome, 'Then wait.')
  })

  test('is not looked at when nothing is kept', async (context) => {
    await skipWithoutPi(context)
    await using other = await NodeStack.start({
      script: hello,
      artifacts: { keep: 'none', fileMb: 1, totalMb: 1 },
      nodeId: `test-${process.pid}-none`,
    })
    const outcome = await other.node.submit(orderOf(taskOf(task))).outcome
    expect(outcome).toMatchObject({ status: 'COMPLETED', artifacts: [] })
  })
})
