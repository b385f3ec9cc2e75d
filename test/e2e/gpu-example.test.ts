import { execFile } from 'node:child_process'
import { globSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { whyNoPython } from '../support/python-environment.ts'

const cwd = join(import.meta.dirname, '../../examples/gpu')
const COMPILE = 'import sys\nfor name in sys.argv[1:]: compile(open(name).read(), name, "exec")'

test('the GPU example compiles, and its expert solves the tasks with the tools of each harness', async ({ skip }) => {
  const reason = whyNoPython()
  if (reason !== undefined) skip(reason)
  const run = promisify(execFile)
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' }
  await run('python3', ['-c', COMPILE, ...globSync('*.py', { cwd })], { cwd })
  const { stderr } = await run('python3', ['-m', 'unittest', '-v'], { cwd, env })
  expect(stderr).toMatch(/^OK$/m)
  expect(stderr).toMatch(/^test_the_expert_solves_every_task/m)
})
