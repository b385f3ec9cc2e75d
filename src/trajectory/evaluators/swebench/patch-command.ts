import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { RolloutError } from '../../../model/failure.ts'
import type { Workspace } from '../../../model/workspace.ts'
import { tail } from '../../grading/run-grading.ts'
import { NOTE, PATCH } from './collect-patch.ts'

export interface PatchCommand {
  /** Shell command for bash in the workdir that prints the patch. */
  command: string
  timeoutMs: number
  maxBytes: number
  env: Readonly<Record<string, string>>
}

/** Collects the patch that a command of the task prints in the agent's sandbox. */
export async function collectByCommand(agent: Workspace, submission: string, options: PatchCommand): Promise<void> {
  const ran = await runPatchCommand(agent, options)
  if ('why' in ran) await writeFile(join(submission, NOTE), ran.why)
  else await writeFile(join(submission, PATCH), ran.patch)
}

/** Throws `evaluator.crashed` if the command also fails in a new sandbox: then the agent did not cause the failure. */
export async function assertPatchCommand(grader: Workspace, options: PatchCommand): Promise<void> {
  const ran = await runPatchCommand(grader, options)
  if (!('why' in ran)) return
  throw new RolloutError('evaluator.crashed', `patch_command fails in a new sandbox as well: ${ran.why}`)
}

async function runPatchCommand(
  workspace: Workspace,
  { command, timeoutMs, maxBytes, env }: PatchCommand,
): Promise<{ patch: Buffer } | { why: string }> {
  const ran = await workspace.run({ command: ['bash', '-c', command], env, timeoutMs, outputBytes: maxBytes + 1 })
  if (ran.isTimedOut) return { why: `patch_command took longer than ${timeoutMs / 1000} s` }
  if (ran.exitCode !== 0) return { why: tail(ran.stderr, 500) || `patch_command ended with ${ran.exitCode}` }
  if (ran.stdoutBytes <= maxBytes) return { patch: ran.stdout }
  throw new RolloutError('workspace.too-large', `The patch has ${ran.stdoutBytes} bytes; see max_patch_bytes`)
}
