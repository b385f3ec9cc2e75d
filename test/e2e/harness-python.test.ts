import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, type TestContext } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { aider } from '../../src/node/harness/presets/aider.ts'
import type { PackagedHarness } from '../../src/node/harness/presets/harness.ts'
import { miniSweAgent } from '../../src/node/harness/presets/mini-swe-agent.ts'
import { openhands } from '../../src/node/harness/presets/openhands.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import type { Scenario } from '../support/harness-scenarios.ts'
import { runHarness, type HarnessRun } from '../support/harness-run.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-python-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

async function play(
  harness: PackagedHarness,
  steps: ReturnType<Scenario['steps']>,
  settings: Record<string, unknown>,
  context: TestContext,
): Promise<HarnessRun> {
  const folders = harnessPlaces(undefined, process.env)
  if ((await findHarness(harness, folders)) === undefined) {
    context.skip(whyNoHarness(harness))
  }
  const prompt = 'Make it: $(id) "x".'
  const scenario = { name: 'python', prompt, steps: () => steps, files: {}, says: '', images: false }
  const run = await runHarness(harness, scenario, { scratch, harnessDir: folders.dir, agent: { settings } })
  expect(run.session.complete).toBe(true)
  expect(run.session.turns.every(({ response }) => response?.grade === 'exact')).toBe(true)
  expect(run.session.turns[0]?.request).toContain(JSON.stringify(run.prompt).slice(1, -1))
  return run
}

function bash(command: string): { tool_calls: { name: string; arguments: { command: string } }[] } {
  return { tool_calls: [{ name: 'bash', arguments: { command } }] }
}

const SUBMIT = 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo It is there.'

test('mini-swe-agent runs commands in the environment of the sandbox and submits a result', async (context) => {
  const inspect = 'echo one > one.txt; echo "[$LD_LIBRARY_PATH$PYTHONPATH$PYTHONHOME]" > env.txt'
  const run = await play(miniSweAgent, [bash(inspect), bash(SUBMIT)], {}, context)
  expect({ exitCode: run.exitCode, stdout: run.stdout.trim() }).toEqual({ exitCode: 0, stdout: 'It is there.' })
  expect(await readFile(join(run.cwd, 'one.txt'), 'utf8')).toBe('one\n')
  expect(await readFile(join(run.cwd, 'env.txt'), 'utf8')).toBe('[]\n')
})

test('mini-swe-agent exits with 53 at its step limit', async (context) => {
  const run = await play(miniSweAgent, [bash('true'), bash('true'), bash(SUBMIT)], { step_limit: 2 }, context)
  expect(run.exitCode, run.stderr).toBe(53)
  expect(run.session.turns).toHaveLength(2)
})

test('Aider applies the edit of an answer', async (context) => {
  const text = "Here it is.\n\nhello.py\n```\nprint('hi')\n```\n"
  const run = await play(aider, [{ text }], { edit_format: 'whole', git: false }, context)
  expect(run.exitCode, run.stderr).toBe(0)
  expect(await readFile(join(run.cwd, 'hello.py'), 'utf8')).toBe("print('hi')\n")
})

test('OpenHands runs commands in the environment of the sandbox, without its own variables and terminal codes', async (context) => {
  const inspect = { tool_calls: [{ name: 'terminal', arguments: { command: 'env > env.txt; echo seen' } }] }
  const run = await play(openhands, [inspect, { text: 'Done.' }], {}, context)
  const own = /POLAR_|LITELLM|LOG_LEVEL|OPENHANDS|SHORT_CONTEXT|LD_LIBRARY_PATH|PYTHON|sk-/
  expect(await readFile(join(run.cwd, 'env.txt'), 'utf8')).not.toMatch(own)
  const [, second] = run.session.turns
  expect(second?.request).toContain('seen')
  expect(second?.request).not.toContain(String.raw`\u001b`)
})

test('OpenHands exits with 53 at its step limit', async (context) => {
  const step = { tool_calls: [{ name: 'terminal', arguments: { command: 'true' } }] }
  const run = await play(openhands, [step, step, { text: 'Done.' }], { max_iterations: 2 }, context)
  expect(run.exitCode, run.stderr).toBe(53)
  expect(run.session.turns).toHaveLength(2)
  expect(run.stderr).toContain('MaxIterationsReached')
})
