import { randomBytes } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { loadProgram } from '../../../lib/process/load-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { Workspace } from '../../../model/workspace.ts'
import { toExcludingPathspecs } from '../../grading/globs.ts'
import { tail } from '../../grading/run-grading.ts'
import { findRepo, runGitInSandbox } from './git.ts'

const COLLECT_MS = 300_000

/** Exit codes of collect-patch.sh. */
const NO_BASE = 3
const TOO_LARGE = 4

const collect = loadProgram(new URL('./collect-patch.sh', import.meta.url))

export interface CollectOptions {
  repo?: string
  base: string
  exclude: readonly string[]
  maxBytes: number
}

/** The collected patch on this machine. */
export type SubmittedPatch = { kind: 'patch'; patch: Buffer } | { kind: 'none'; why: string }

/** Files of the submission. */
export const PATCH = 'patch.diff'
export const NOTE = 'no-patch.txt'

/** Copies the agent's changes from its sandbox as a patch against `base`. */
export async function collectPatch(agent: Workspace, submission: string, options: CollectOptions): Promise<void> {
  const repo = await findRepo(agent, options.repo)
  const scratch = `/tmp/collect-${randomBytes(8).toString('hex')}`
  const result = await runGitInSandbox(
    { workspace: agent, repo, scratch, base: options.base },
    {
      script: collect(),
      args: [String(options.maxBytes), ...toExcludingPathspecs(options.exclude)],
      outputBytes: options.maxBytes + 1,
      timeoutMs: COLLECT_MS,
    },
  )
  const message = tail(result.stderr, 500)
  if (result.exitCode === TOO_LARGE) throw tooLarge(`${message} is larger than ${options.maxBytes} bytes`)
  if (result.isTimedOut) throw tooLarge(`reading the repository took more than ${COLLECT_MS / 1000} s`)
  if (result.stdoutBytes > options.maxBytes) throw tooLarge(`the patch has ${result.stdoutBytes} bytes`)
  if (result.exitCode === 0) return writeFile(join(submission, PATCH), result.stdout)
  // Only a run in a clean sandbox can show the cause.
  const why =
    result.exitCode === NO_BASE ? `it has no commit ${options.base}` : message || `git ended with ${result.exitCode}`
  await writeFile(join(submission, NOTE), `No patch could be created from ${repo}: ${why}`)
}

export async function loadSubmission(submission: string): Promise<SubmittedPatch> {
  const patch = await readFile(join(submission, PATCH)).catch(() => undefined)
  if (patch !== undefined) return { kind: 'patch', patch }
  const why = await readFile(join(submission, NOTE), 'utf8').catch(() => 'Nothing was collected')
  return { kind: 'none', why }
}

function tooLarge(what: string): RolloutError {
  return new RolloutError('workspace.too-large', `The agent's changes cannot be graded: ${what}; see max_patch_bytes`)
}
