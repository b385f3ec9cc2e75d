import { RolloutError } from '../../model/failure.ts'
import type { CommandResult, Workspace, WorkspaceCommand } from '../../model/workspace.ts'

/** Most of a log that is kept as evidence. */
const EVIDENCE_BYTES = 1024 * 1024
const TOLD_BYTES = 1000

export interface GradingCommand extends WorkspaceCommand {
  /** For messages. */
  name: string
  /** A new sandbox with all that the command needs, but without any file of the agent. */
  control: () => Promise<Workspace>
}

/**
 * Runs a command over the agent's files. Every ending is a verdict, also 126 and 127: the agent's code can end with both.
 * Throws where it is not: for a program that the grader's image lacks, and for a sandbox that died.
 */
export async function runGrading(grader: Workspace, command: GradingCommand): Promise<CommandResult> {
  const { name, control, ...rest } = command
  const result = await grader.run(rest)
  const { exitCode, isTimedOut } = result
  if (isTimedOut) return result
  if (isNotRun(result)) await assertPrograms(name, async () => (await control()).run(rest))
  if (exitCode === null || exitCode >= 128) await assertAlive(grader, name)
  return result
}

/**
 * Throws `evaluator.crashed` when a run without the agent's files ends because the sandbox lacks a program: then the
 * grader's image is wrong, whatever the agent left.
 */
async function assertPrograms(name: string, run: () => Promise<CommandResult>): Promise<void> {
  const program = missingProgram(await run())
  if (program === undefined) return
  throw new RolloutError(
    'evaluator.crashed',
    `${name} needs the program ${program}, which the grader's sandbox lacks; install it in runtime.eval_prepare or the image.`,
  )
}

/** Whether the exit code is the one of shells for a command that they cannot find or run. */
export function isNotRun({ exitCode }: Pick<CommandResult, 'exitCode'>): boolean {
  return exitCode === 126 || exitCode === 127
}

/** What shells and env(1) write about a program that is not in PATH; names with a slash may be files of the agent. */
const NOT_FOUND = [
  /(?:^|[\s:])([^\s:/'"`‘’]+): (?:command )?not found$/m,
  /(?:^|\/)env: (?:can't execute )?['"‘]?([^\s:/'"‘’]+)['"’]?: No such file or directory$/m,
]

/** The program that a command did not find in PATH. Only for a run without files of the agent, which could write the same. */
export function missingProgram(result: Pick<CommandResult, 'exitCode' | 'stderr'>): string | undefined {
  if (!isNotRun(result)) return undefined
  const said = tail(result.stderr, TOLD_BYTES)
  return NOT_FOUND.map((pattern) => pattern.exec(said)?.[1]).find((name) => name !== undefined)
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
