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
import { ADD_ALL, runGitInSandbox, type GitPlace } from './git.ts'

const GIT_MS = 300_000
const LIST_BYTES = 64 * 1024 * 1024

/** The repository as it is in the grader, as a tree, and the files of the base commit. */
const START = `[ -n "$base" ] || exit 3
ours start
git read-tree "$base"
${ADD_ALL}
git write-tree
git ls-tree -r -z --name-only "$base"
`

/** The base commit with a patch; patch(1) is more lenient than git. */
const WITH_PATCH = String.raw`cat > "$room/patch"
ours agent
git read-tree "$base"
if ! git apply --cached --whitespace=nowarn "$room/patch" 2> "$room/said"; then
  mkdir "$room/tree"
  git --work-tree="$room/tree" checkout-index -a -f
  (cd "$room/tree" && patch --batch --forward --fuzz=5 -p1 -s < "$room/patch") >> "$room/said" 2>&1 || { tail -c 2000 "$room/said" >&2; exit 5; }
  (cd "$room/tree" && find . \( -name '*.orig' -o -name '*.rej' \) -delete && GIT_WORK_TREE="$room/tree" git add -A -f .)
fi
git diff-tree -r -z --no-renames --no-abbrev "$1" "$(git write-tree)"
`

/** The tree of the grader with the test patch. */
const WITH_TESTS = `cat > "$room/tests"
ours tests
git read-tree "$1"
if [ -s "$room/tests" ]; then git apply --cached --whitespace=nowarn "$room/tests"; fi
git diff-tree -r -z --no-renames --no-abbrev "$1" "$(git write-tree)"
`

/** Puts chosen files into the tree of the grader and brings the work tree to it. */
const WRITE = String.raw`cat > "$room/entries"
ours final
git read-tree "$1"
git update-index --replace -z --index-info < "$room/entries"
final=$(git write-tree)
git diff-tree -r -z --no-renames --name-only --diff-filter=D "$1" "$final" | xargs -0 -r rm -f --
git diff-tree -r -z --no-renames --name-only --diff-filter=d "$1" "$final" | git checkout-index -f -z --stdin
git diff-tree -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color "$1" "$final"
`

export interface Start {
  tree: string
  basePaths: ReadonlySet<string>
}

/** The grader's own state. Throws when it has no such base: then no session of this instance can be graded. */
export async function loadStart(place: GitPlace, exclude: readonly string[]): Promise<Start> {
  const result = await runGitInSandbox(place, {
    script: START,
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
  const options = { script: WITH_PATCH, args: [start.tree], stdin: patch, outputBytes: LIST_BYTES, timeoutMs: GIT_MS }
  const result = await runGitInSandbox(place, options)
  if (result.exitCode === 0) return { changes: parseChanges(result.stdout) }
  assertEnded(result)
  return { changes: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

/** What the test patch makes different. It is the dataset's, and nothing of the agent is there yet. */
export async function loadTestChanges(place: GitPlace, start: Start, testPatch: string): Promise<Change[]> {
  const options = {
    script: WITH_TESTS,
    args: [start.tree],
    stdin: testPatch,
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  }
  const result = await runGitInSandbox(place, options)
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
      const script = 'ours final; git cat-file --batch'
      return parseBlobs((await runGitInSandbox(place, { script, stdin: `${names.join('\n')}\n`, ...limits })).stdout)
    },
    async writeBlob(text) {
      const script = 'ours final; git hash-object -w --stdin'
      const written = await runGitInSandbox(place, { script, stdin: text, timeoutMs: GIT_MS })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex((await runGitInSandbox(place, { script: 'ours agent; git ls-files -s -z', ...limits })).stdout)
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
  const result = await runGitInSandbox(place, { script: WRITE, ...options })
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
