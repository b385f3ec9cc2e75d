import { loadProgram } from '../../../lib/process/load-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { CommandResult } from '../../../model/workspace.ts'
import type { Change, Rules } from '../../grading/change-policy.ts'
import {
  chooseChanges,
  parseBlobs,
  parseChanges,
  parseIndex,
  type ChangeStore,
  type ChosenChanges,
} from '../../grading/choose-changes.ts'
import { toExcludingPathspecs } from '../../grading/globs.ts'
import { tail } from '../../grading/run-grading.ts'
import { runGitInSandbox, type GitTarget } from './git.ts'

const GIT_MS = 300_000
const LIST_BYTES = 64 * 1024 * 1024

const readStart = loadProgram(new URL('./read-start.sh', import.meta.url))
const applyPatch = loadProgram(new URL('./apply-patch.sh', import.meta.url))
const applyTests = loadProgram(new URL('./apply-tests.sh', import.meta.url))
const writeTree = loadProgram(new URL('./write-changes.sh', import.meta.url))

export interface Start {
  tree: string
  basePaths: ReadonlySet<string>
}

/** Loads the grader's state. Throws if the base commit is missing: then no session of this instance can be graded. */
export async function loadStart(target: GitTarget, exclude: readonly string[]): Promise<Start> {
  const result = await runGitInSandbox(target, {
    script: readStart(),
    args: toExcludingPathspecs(exclude),
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  })
  if (result.exitCode === 3)
    throw crashed(
      `${target.repo} in the grader's sandbox has no commit ${target.base}; check image, repo_dir and base.`,
    )
  if (result.exitCode !== 0) throw crashed(`${target.repo} in the grader's sandbox: ${tail(result.stderr, 500)}`)
  const text = result.stdout.toString('utf8')
  const end = text.indexOf('\n')
  return {
    tree: text.slice(0, end),
    basePaths: new Set(
      text
        .slice(end + 1)
        .split('\0')
        .filter((path) => path !== ''),
    ),
  }
}

/** Compares a patch with the grader's state. `changes` is undefined, with the reason, if it cannot be applied. */
export async function loadAgentChanges(
  target: GitTarget,
  start: Start,
  patch: Uint8Array,
): Promise<{ changes: Change[] } | { changes: undefined; why: string }> {
  const options = { script: applyPatch(), args: [start.tree], stdin: patch, outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  const result = await runGitInSandbox(target, options)
  if (result.exitCode === 0) return { changes: parseChanges(result.stdout) }
  assertEnded(result)
  return { changes: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

/** Returns the changes of the dataset's test patch. The sandbox contains no file of the agent yet. */
export async function loadTestChanges(target: GitTarget, start: Start, testPatch: string): Promise<Change[]> {
  const options = {
    script: applyTests(),
    args: [start.tree],
    stdin: testPatch,
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  }
  const result = await runGitInSandbox(target, options)
  if (result.exitCode === 0) return parseChanges(result.stdout)
  throw crashed(`The test patch does not apply to ${target.base}: ${tail(result.stderr, 1000)}`)
}

/** Divides the agent's changes into graded and dropped ones. */
export function chooseAgentChanges(
  target: GitTarget,
  start: Start,
  changes: readonly Change[],
  rules: Omit<Rules, 'basePaths'>,
): Promise<ChosenChanges> {
  return chooseChanges(changes, { ...rules, basePaths: start.basePaths }, toStore(target))
}

function toStore(target: GitTarget): ChangeStore {
  const limits = { outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  return {
    repo: target.repo,
    async readBlobs(names) {
      const script = 'use_index final; git cat-file --batch'
      return parseBlobs((await runGitInSandbox(target, { script, stdin: `${names.join('\n')}\n`, ...limits })).stdout)
    },
    async writeBlob(text) {
      const script = 'use_index final; git hash-object -w --stdin'
      const written = await runGitInSandbox(target, { script, stdin: text, timeoutMs: GIT_MS })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex(
        (await runGitInSandbox(target, { script: 'use_index agent; git ls-files -s -z', ...limits })).stdout,
      )
    },
  }
}

/** Writes the changes over the grader's state into the work tree, later changes last. Returns them as a patch. */
export async function writeChanges(
  target: GitTarget,
  start: Start,
  changes: readonly Change[],
): Promise<{ patch: Buffer } | { patch: undefined; why: string }> {
  const entries = changes.map(({ mode, blob, path, status }) =>
    status === 'D' ? `0 ${blob}\t${path}\0` : `${mode} ${blob}\t${path}\0`,
  )
  const options = { args: [start.tree], stdin: entries.join(''), outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  const result = await runGitInSandbox(target, { script: writeTree(), ...options })
  if (result.exitCode === 0) return { patch: result.stdout }
  assertEnded(result)
  return { patch: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

/** Throws if git was killed: the sandbox may have died, which is no verdict about the patch. */
function assertEnded({ exitCode, isTimedOut }: CommandResult): void {
  if (exitCode !== null || isTimedOut) return
  throw new RolloutError('runtime.gone', "git was killed in the grader's sandbox")
}

function crashed(message: string): RolloutError {
  return new RolloutError('evaluator.crashed', message)
}
