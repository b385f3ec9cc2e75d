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
import { runGit, type GitPlace } from './git.ts'

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

/** The grader's own state. Throws when it has no such base: then no session of this instance can be graded. */
export async function loadStart(place: GitPlace, exclude: readonly string[]): Promise<Start> {
  const result = await runGit(place, {
    script: readStart(),
    args: toExcludingPathspecs(exclude),
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  })
  if (result.exitCode === 3)
    throw crashed(`${place.repo} in the grader's sandbox has no commit ${place.base}; check image, repo_dir and base`)
  if (result.exitCode !== 0) throw crashed(`${place.repo} in the grader's sandbox: ${tail(result.stderr, 500)}`)
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

/** What a patch makes different from the grader's state; undefined, with why, when it cannot be applied. */
export async function loadAgentChanges(
  place: GitPlace,
  start: Start,
  patch: Uint8Array,
): Promise<{ changes: Change[] } | { changes: undefined; why: string }> {
  const options = { script: applyPatch(), args: [start.tree], stdin: patch, outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  const result = await runGit(place, options)
  if (result.exitCode === 0) return { changes: parseChanges(result.stdout) }
  assertEnded(result)
  return { changes: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

/** What the test patch makes different. It is the dataset's, and nothing of the agent is there yet. */
export async function loadTestChanges(place: GitPlace, start: Start, testPatch: string): Promise<Change[]> {
  const options = {
    script: applyTests(),
    args: [start.tree],
    stdin: testPatch,
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  }
  const result = await runGit(place, options)
  if (result.exitCode === 0) return parseChanges(result.stdout)
  throw crashed(`The test patch does not apply to ${place.base}: ${tail(result.stderr, 1000)}`)
}

/** Divides an agent's changes into those that are graded and those that are not. */
export function chooseAgentChanges(
  place: GitPlace,
  start: Start,
  changes: readonly Change[],
  rules: Omit<Rules, 'basePaths'>,
): Promise<ChosenChanges> {
  return chooseChanges(changes, { ...rules, basePaths: start.basePaths }, toStore(place))
}

function toStore(place: GitPlace): ChangeStore {
  const limits = { outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  return {
    repo: place.repo,
    async readBlobs(names) {
      const script = 'use_index final; git cat-file --batch'
      return parseBlobs((await runGit(place, { script, stdin: `${names.join('\n')}\n`, ...limits })).stdout)
    },
    async writeBlob(text) {
      const script = 'use_index final; git hash-object -w --stdin'
      const written = await runGit(place, { script, stdin: text, timeoutMs: GIT_MS })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex((await runGit(place, { script: 'use_index agent; git ls-files -s -z', ...limits })).stdout)
    },
  }
}

/** Brings the work tree to the grader's state with these changes, later ones over earlier ones; gives that as a patch. */
export async function writeChanges(
  place: GitPlace,
  start: Start,
  changes: readonly Change[],
): Promise<{ patch: Buffer } | { patch: undefined; why: string }> {
  const entries = changes.map(({ mode, blob, path, status }) =>
    status === 'D' ? `0 ${blob}\t${path}\0` : `${mode} ${blob}\t${path}\0`,
  )
  const options = { args: [start.tree], stdin: entries.join(''), outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  const result = await runGit(place, { script: writeTree(), ...options })
  if (result.exitCode === 0) return { patch: result.stdout }
  assertEnded(result)
  return { patch: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

/** Throws when git did not end by itself: its sandbox may have died, which is no verdict about the patch. */
function assertEnded({ exitCode, isTimedOut }: CommandResult): void {
  if (exitCode !== null || isTimedOut) return
  throw new RolloutError('runtime.gone', "git was killed in the grader's sandbox")
}

function crashed(message: string): RolloutError {
  return new RolloutError('evaluator.crashed', message)
}
