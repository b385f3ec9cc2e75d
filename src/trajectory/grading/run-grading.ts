import { RolloutError } from '../../model/failure.ts'
import type { CommandResult, Workspace, WorkspaceCommand } from '../../model/workspace.ts'

/** Maximum size of a log that is kept as evidence. */
const EVIDENCE_BYTES = 1024 * 1024
const SHOWN_BYTES = 1000

export interface GradingCommand extends WorkspaceCommand {
  /** Name in messages. */
  name: string
  /** Starts a new sandbox with everything that the command needs, but without files of the agent. */
  control: () => Promise<Workspace>
}

/**
 * Runs a grading command over the agent's files. Every exit code is a verdict, including 126 and 127: the agent's code can
 * cause both. Throws if the grader's image lacks a program or the sandbox died.
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

/** Throws `evaluator.crashed` if a run without the agent's files fails because the sandbox lacks a program. */
async function assertPrograms(name: string, run: () => Promise<CommandResult>): Promise<void> {
  const program = missingProgram(await run())
  if (program === undefined) return
  throw new RolloutError(
    'evaluator.crashed',
    `${name} needs the program ${program}, which the grader's sandbox lacks. Install it in runtime.eval_prepare or in the image.`,
  )
}

/** Whether the exit code is a shell's code for a command that it cannot find or run. */
export function isNotRun({ exitCode }: Pick<CommandResult, 'exitCode'>): boolean {
  return exitCode === 126 || exitCode === 127
}

/** Messages of shells and env(1) about a program that is not in PATH. Names with a slash may be files of the agent. */
const NOT_FOUND = [
  /(?:^|[\s:])([^\s:/'"`‘’]+): (?:command )?not found$/m,
  /(?:^|\/)env: (?:can't execute )?['"‘]?([^\s:/'"‘’]+)['"’]?: No such file or directory$/m,
]

/**
 * Returns the program that a command did not find in PATH. Only for a run without the agent's files, which could print
 * the same.
 */
export function missingProgram(result: Pick<CommandResult, 'exitCode' | 'stderr'>): string | undefined {
  if (!isNotRun(result)) return undefined
  const message = tail(result.stderr, SHOWN_BYTES)
  return NOT_FOUND.map((pattern) => pattern.exec(message)?.[1]).find((name) => name !== undefined)
}

/** Throws `runtime.gone` if the sandbox runs no commands any more. */
async function assertAlive(grader: Workspace, name: string): Promise<void> {
  const { exitCode } = await grader.run({ command: ['/bin/sh', '-c', 'exit 0'], timeoutMs: 30_000 })
  if (exitCode === 0) return
  throw new RolloutError('runtime.gone', `The grader's sandbox died while ${name} ran`)
}

/** Returns the last `bytes` bytes as text. */
export function tail(data: Uint8Array, bytes: number): string {
  return Buffer.from(data.subarray(Math.max(0, data.length - bytes)))
    .toString('utf8')
    .trim()
}

/** Returns a log as evidence. A long log keeps its first quarter and its last three quarters of the limit. */
export function toEvidence(data: Buffer, written = data.length): Buffer {
  const lost = written > data.length ? `\n[${written - data.length} more bytes were not kept]\n` : ''
  if (data.length <= EVIDENCE_BYTES) return Buffer.concat([data, Buffer.from(lost)])
  const [head, end] = [data.subarray(0, EVIDENCE_BYTES / 4), data.subarray(data.length - (EVIDENCE_BYTES * 3) / 4)]
  const left = Buffer.from(`\n[${data.length - head.length - end.length} bytes left out]\n`)
  return Buffer.concat([head, left, end, Buffer.from(lost)])
}

/** Returns the facts of a run for the metadata of a grade. */
export function toMetadata({ exitCode, signal, isOutOfMemory, durationMs }: CommandResult): Record<string, unknown> {
  return {
    exit_code: exitCode,
    signal: signal ?? undefined,
    out_of_memory: isOutOfMemory || undefined,
    duration_ms: Math.round(durationMs),
  }
}
