import { expect, test } from 'vitest'
import { describePreset, exampleSetup } from './harness.contract.ts'
import { shell } from './shell.ts'

const command = { command: 'my-agent --task "$POLAR_INSTRUCTION_FILE"', env: { MODE: 'fast' } }

describePreset(shell, { shell: command })

test('shell runs the command of the task, with all gateway variables and the instruction in a file', () => {
  const { files, env, args } = shell.configure({ ...exampleSetup, shell: command })
  expect(files).toEqual({})
  expect(args).toEqual(['-c', command.command])
  expect(env).toMatchObject({
    OPENAI_BASE_URL: 'http://127.0.0.1:4000/s/ses_1/v1',
    ANTHROPIC_BASE_URL: 'http://127.0.0.1:4000/s/ses_1',
    GEMINI_API_KEY: 'sk-polar-secret',
    POLAR_SESSION_ID: 'ses_1',
    POLAR_INSTRUCTION_FILE: '/sandbox/home/.polar/instruction.md',
    MODE: 'fast',
  })
})

test('shell rejects a task without a command', () => {
  expect(() => shell.configure(exampleSetup)).toThrow('needs a custom_shell')
})
