import { expect, test } from 'vitest'
import type { CommandResult, Workspace } from '../../model/workspace.ts'
import { missingProgram, runGrading } from './run-grading.ts'

function ended(exitCode: number | null, stderr = ''): CommandResult {
  return {
    exitCode,
    signal: exitCode === null ? 'SIGKILL' : null,
    isTimedOut: false,
    stdout: Buffer.alloc(0),
    stderr: Buffer.from(stderr),
    stdoutBytes: 0,
    stderrBytes: stderr.length,
    durationMs: 1,
  }
}

/** A sandbox whose commands end with these results, in order. */
function workspaceOf(...results: CommandResult[]): Workspace {
  return { workdir: '/w', run: async () => results.shift() ?? ended(0) } as unknown as Workspace
}

const run = (result: CommandResult, control: CommandResult, ...more: CommandResult[]) =>
  runGrading(workspaceOf(result, ...more), {
    name: 'The command',
    command: ['/bin/sh', '-c', 'x'],
    control: async () => workspaceOf(control),
  })

test.each([126, 127])('exit code %d is a verdict if the command runs without the agent’s files', async (exitCode) => {
  const forged = ended(exitCode, 'sh: 1: pytest: not found')
  expect(await run(forged, ended(1))).toMatchObject({ exitCode })
  // The program is one of the agent's files.
  expect(await run(forged, ended(127, 'sh: 1: ./solution: not found'))).toMatchObject({ exitCode })
  expect(await run(forged, ended(126, 'sh: 1: ./solution: Permission denied'))).toMatchObject({ exitCode })
})

test('runGrading() throws if the image lacks a program', async () => {
  await expect(run(ended(127), ended(127, 'sh: 1: pytest: not found'))).rejects.toMatchObject({
    code: 'evaluator.crashed',
    message: expect.stringContaining('needs the program pytest'),
  })
})

test('runGrading() returns the result of a command that a signal ended if the sandbox still runs', async () => {
  expect(await run(ended(null), ended(0), ended(0))).toMatchObject({ exitCode: null })
  await expect(run(ended(null), ended(0), ended(127))).rejects.toMatchObject({ code: 'runtime.gone' })
})

test.each([
  ['sh: 1: no-such-program: not found', 'no-such-program'],
  ['/bin/sh: 3: exec: pytest: not found', 'pytest'],
  ['bash: line 1: uvx: command not found', 'uvx'],
  ['/tests/test.sh: line 4: uv: command not found\nmore', 'uv'],
  ['sh: node: not found', 'node'],
  ["env: 'python3': No such file or directory", 'python3'],
  ['/usr/bin/env: ‘bash’: No such file or directory', 'bash'],
  ["env: can't execute 'bash': No such file or directory", 'bash'],
  ['sh: 1: ./solution: not found', undefined],
  ["env: './solution': No such file or directory", undefined],
  ['sh: 0: cannot open run.sh: No such file', undefined],
  ['', undefined],
])('missingProgram() parses %j', (stderr, program) => {
  expect(missingProgram(ended(127, stderr))).toBe(program)
  expect(missingProgram(ended(1, stderr))).toBeUndefined()
})
