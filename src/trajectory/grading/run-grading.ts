import { RolloutError } from '../../model/failure.ts'
import type { CommandResult, Workspace, WorkspaceCommand } from '../../model/workspace.ts'

/** Most of a log that is kept as evidence. */
const EVIDENCE_BYTES = 1024 * 1024
const TOLD_BYTES = 1000

/**
 * Runs a command whose ending is a verdict. What is no verdict throws: a shell that cannot find or run it (126, 127), or a
 * sandbox that died under it, which looks like a signal.
 */
export async function runGrading(
  grader: Workspace,
  command: WorkspaceCommand & { /** What it is, for messages. */ name: string },
): Promise<CommandResult> {
  const { name, ...rest } = command
  const result = await grader.run(rest)
  const { exitCode, isTimedOut } = result
  if (isTimedOut) return result
  if (exitCode === 126 || exitCode === 127) {
    const said = tail(result.stderr.length > 0 ? result.stderr : result.stdout, TOLD_BYTES)
    throw new RolloutError(
      'evaluator.crashed',
      `${name} could not be run in the grader's sandbox (exit code ${exitCode}): ${said || 'it said nothing'}`,
    )
  }
  if (exitCode === null || exitCode >= 128) await assertAlive(grader, name)
  return result
}

/** Throws when nothing can be run in a sandbox any more. */
async function assertAlive(grader: Workspace, name: string): Promise<void> {
  const { exitCode } = await grader.run({ command: ['/bin/sh', '-c', 'exit 0'], timeoutMs: 30_000 })
  if (exitCode === 0) return
  throw new RolloutError('runtime.gone', `The grader's sandbox died while ${name} ran`)
}

/** The last so many bytes as text. */
export function tail(data: Uint8Array, bytes: number): string {
  return Buffer.from(data.subarray(Math.max(0, data.length - bytes)))
    .toString('utf8')
    .trim()
}

/** A log as evidence: all of it, or its beginning and, mostly, its end. */
export function toEvidence(data: Buffer, written = data.length): Buffer {
  const lost = written > data.length ? `\n[${written - data.length} more bytes were not kept]\n` : ''
  if (data.length <= EVIDENCE_BYTES) return Buffer.concat([data, Buffer.from(lost)])
  const [head, end] = [data.subarray(0, EVIDENCE_BYTES / 4), data.subarray(data.length - (EVIDENCE_BYTES * 3) / 4)]
  const left = Buffer.from(`\n[${data.length - head.length - end.length} bytes left out]\n`)
  return Buffer.concat([head, left, end, Buffer.from(lost)])
}
