import { randomBytes } from 'node:crypto'
import { RolloutError } from '../../../model/failure.ts'
import type { CommandResult, Workspace } from '../../../model/workspace.ts'
import { tail } from '../../grading/run-grading.ts'
import { findDoubts } from './doubts.ts'
import type { Finding } from './log.ts'
import type { Recipe } from './recipes.ts'

/** Most of a run's output that is read. More is a flood. */
const OUTPUT_BYTES = 32 * 1024 * 1024

/**
 * What comes before the tests writes to a file, so that all there is to read is the tests' own, from the first byte to the
 * last: there are no marks in it that a test could print.
 */
const SCRIPT = `cd -- "$1" || exit 126
{ eval "$3"
} > "$2" 2>&1 < /dev/null
exec 2>&1 < /dev/null
eval "$4"`

export interface TestRun {
  exitCode: number | null
  isTimedOut: boolean
  isOutOfMemory: boolean
  /** Whether it wrote more than is read. */
  isFlood: boolean
  output: Buffer
  outputBytes: number
  findings: Finding[]
  /** Tests of which something was said that keeps them from having passed. */
  doubts: ReadonlySet<string>
  /** How the environment was made, its end. */
  setupLog: string
  durationMs: number
}

export async function runTests(
  grader: Workspace,
  options: { repo: string; recipe: Recipe; command: string; env: Readonly<Record<string, string>>; timeoutMs: number },
): Promise<TestRun> {
  const { repo, recipe, command, env, timeoutMs } = options
  const log = `/tmp/setup-${randomBytes(8).toString('hex')}.log`
  const result = await grader.run({
    command: ['bash', '-c', SCRIPT, 'bash', repo, log, recipe.setup, command],
    env,
    timeoutMs,
    outputBytes: OUTPUT_BYTES,
  })
  await assertAlive(grader, result)
  const setup = await grader.readFile(log, { maxBytes: 16 * 1024 * 1024 }).catch(() => Buffer.alloc(0))
  const text = decodeOutput(result.stdout)
  return {
    exitCode: result.exitCode,
    isTimedOut: result.isTimedOut,
    isOutOfMemory: result.isOutOfMemory === true,
    isFlood: result.stdoutBytes > OUTPUT_BYTES,
    output: result.stdout,
    outputBytes: result.stdoutBytes,
    // As between two marks on lines of their own, where the swebench package has it; one parser can tell.
    findings: recipe.parse(`\n${text}\n`),
    doubts: findDoubts(recipe.parserName, text),
    setupLog: tail(setup, 2000),
    durationMs: result.durationMs,
  }
}

/** Lines as a program that reads text files sees them. */
export function decodeOutput(output: Buffer): string {
  return output.toString('utf8').replaceAll(/\r\n?/g, '\n')
}

/** A signal may be the tests' own doing, or the end of the sandbox. */
async function assertAlive(grader: Workspace, { exitCode, isTimedOut }: CommandResult): Promise<void> {
  if (isTimedOut || (exitCode !== null && exitCode < 128)) return
  const probe = await grader.run({ command: ['/bin/sh', '-c', 'exit 0'], timeoutMs: 30_000 })
  if (probe.exitCode !== 0) throw new RolloutError('runtime.gone', "The grader's sandbox died while the tests ran")
}
