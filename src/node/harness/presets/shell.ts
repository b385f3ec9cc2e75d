import * as z from 'zod'
import { RolloutError } from '../../../model/failure.ts'
import { defineHarness, gatewayVariables, type Harness } from './harness.ts'

const ShellSettings = z.strictObject({})

/** Runs the task's command with `sh -c`. POLAR_INSTRUCTION_FILE contains the path of the instruction. */
export const shell = defineHarness<typeof ShellSettings.shape, Harness>({
  name: 'shell',
  title: 'a command of the task',
  command: '/bin/sh',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: [],
  settings: ShellSettings,
  configure(setup) {
    if (setup.shell === undefined) {
      throw new RolloutError('config.invalid', 'The harness shell needs a custom_shell with the command to run.')
    }
    return {
      files: {},
      env: { ...gatewayVariables(setup), POLAR_INSTRUCTION_FILE: setup.instructionFile, ...setup.shell.env },
      args: ['-c', setup.shell.command],
    }
  },
  exitCodes: {},
})
