import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { pi } from '../../src/node/harness/presets/pi.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import { NodeStack, orderOf, taskOf } from '../support/node-stack.ts'

const SCRIPT = `
scenarios:
  write:
    - tool_calls: [{ name: write, arguments: { path: note.txt, content: done } }]
    - text: The note is written.
  plant:
    - tool_calls:
        - name: bash
          arguments:
            command: |
              cd "$HOME/.pi/agent/sessions" && ln -s /etc/passwd link && ln -s / root && mkfifo pipe && echo planted
    - text: It is planted.
  wait:
    - text: Now I wait.
      tool_calls: [{ name: bash, arguments: { command: sleep 1000 } }]
`

const evaluator = { strategy: 'command', config: { command: 'grep -q done note.txt' } }
const writes = { instruction: 'SCRIPT:write Write a note.', agent: { harness: 'pi' }, evaluator }
const plants = { instruction: 'SCRIPT:plant Plant it.', agent: { harness: 'pi' }, timeout_seconds: 60 }
const waits = { instruction: 'SCRIPT:wait Wait.', agent: { harness: 'pi' }, timeout_seconds: 8 }

let dir: string
let script: string
let stack: NodeStack
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-node-logs-'))
  script = join(dir, 'script.yaml')
  await writeFile(script, SCRIPT)
  stack = await NodeStack.start({ script, runtime: 'local' })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true })
})

async function skipWithoutPi(context: TestContext): Promise<void> {
  const found = await findHarness(pi, harnessPlaces(undefined, process.env))
  if (found?.bundle === undefined) context.skip(whyNoHarness(pi))
}

async function expectLog({ sessionId, artifacts }: SessionOutcome, expected: string): Promise<void> {
  const logs = artifacts.filter(({ path }) => /^harness\/.+\.jsonl$/.test(path))
  expect(logs).toEqual([{ path: expect.any(String), bytes: expect.any(Number), isCut: false }])
  const text = await readFile(join(stack.dir, 'sessions', sessionId, 'artifacts', logs[0]!.path), 'utf8')
  expect(text).toContain(expected)
  expect(await readdir(join(stack.dir, 'grading'))).toEqual([])
}

describe('the session log that pi writes', () => {
  test.for(['bubblewrap', 'local'])('is stored with the session (%s)', async (backend, context) => {
    await skipWithoutPi(context)
    const outcome = await stack.node.submit(orderOf(taskOf({ ...writes, runtime: { backend } }))).outcome
    if (outcome.failure?.code === 'runtime.unavailable') return context.skip(outcome.failure.message)
    expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 }, counts: { calls: 2 } })
    await expectLog(outcome, 'The note is written.')
  })

  test.for(['bubblewrap', 'local'])(
    'gives no access to files of the host through links or pipes in its folder (%s)',
    async (backend, context) => {
      await skipWithoutPi(context)
      const outcome = await stack.node.submit(orderOf(taskOf({ ...plants, runtime: { backend } }))).outcome
      if (outcome.failure?.code === 'runtime.unavailable') return context.skip(outcome.failure.message)
      expect(outcome).toMatchObject({ status: 'COMPLETED', counts: { calls: 2 } })
      const kept = outcome.artifacts.filter(({ path }) => path.startsWith('harness/'))
      expect(kept).not.toEqual([])
      for (const { path } of kept) {
        expect(path).toMatch(/\.jsonl$|^harness\/not-kept\.txt$/)
        const text = await readFile(join(stack.dir, 'sessions', outcome.sessionId, 'artifacts', path), 'utf8')
        expect(text).toMatch(/planted|pipe/)
        expect(text).not.toContain('root:x:0')
      }
    },
  )

  test('is stored after a timeout too', async (context) => {
    await skipWithoutPi(context)
    const outcome = await stack.node.submit(orderOf(taskOf(waits))).outcome
    expect(outcome).toMatchObject({ status: 'TIMEOUT', counts: { calls: 1 } })
    await expectLog(outcome, 'Now I wait.')
  })

  test('is not collected if artifacts.keep is none', async (context) => {
    await skipWithoutPi(context)
    const artifacts = { keep: 'none', fileMb: 1, totalMb: 1 } as const
    await using other = await NodeStack.start({ script, artifacts, nodeId: `test-${process.pid}-none` })
    const outcome = await other.node.submit(orderOf(taskOf(writes))).outcome
    expect(outcome).toMatchObject({ status: 'COMPLETED', artifacts: [] })
  })
})
