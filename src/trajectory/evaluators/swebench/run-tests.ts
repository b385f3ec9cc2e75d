import { randomBytes } from 'node:crypto'
import { RolloutError } from '../../../model/failure.ts'
import type { CommandResult, Workspace } from '../../../model/workspace.ts'
import { tail } from '../../grading/run-grading.ts'
import { findDoubts } from './doubts.ts'
import type { Finding } from './log.ts'
import type { Recipe } from './recipes.ts'

/** Maximum output of a run. */
const OUTPUT_BYTES = 32 * 1024 * 1024

/**
 * The setup writes to a file, so that the output belongs entirely to the tests. It needs no marks, which a test could
 * forge.
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
  /** Whether the output exceeds the limit. */
  isFlood: boolean
  output: Buffer
  outputBytes: number
  findings: Finding[]
  /** Tests that have not passed, from `findDoubts`. */
  doubts: ReadonlySet<string>
  /** End of the setup's output. */
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
    // The swebench package reads the log between two mark lines; one parser depends on the line breaks.
    findings: recipe.parse(`\n${text}\n`),
    doubts: findDoubts(recipe.parserName, text),
    setupLog: tail(setup, 2000),
    durationMs: result.durationMs,
  }
}

/** Decodes output with normalised line ends. */
export function decodeOutput(output: Buffer): string {
  return output.toString('utf8').replaceAll(/\r\n?/g, '\n')
}

/** Throws `runtime.gone` if the sandbox died: a signal may come from the tests or from the end of the sandbox. */
async function assertAlive(grader: Workspace, { exitCode, isTimedOut }: CommandResult): Promise<void> {
  if (isTimedOut || (exitCode !== null && exitCode < 128)) return
  const probe = await grader.run({ command: ['/bin/sh', '-c', 'exit 0'], timeoutMs: 30_000 })
  if (probe.exitCode !== 0) throw new RolloutError('runtime.gone', "The grader's sandbox died while the tests ran")
}
