import { RolloutError } from '../../../model/failure.ts'
import type { CommandResult } from '../../../model/workspace.ts'
import { toExcludingPathspecs } from '../../grading/globs.ts'
import { tail } from '../../grading/run-grading.ts'
import { ADD_ALL, runGit, type GitPlace } from './git.ts'
import { createPolicy, mergePackageJson, type Change, type Decision, type Rules } from './protect.ts'

const GIT_MS = 300_000
const LIST_BYTES = 64 * 1024 * 1024
const FILE_BYTES = 4 * 1024 * 1024

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

export interface DroppedFile {
  path: string
  why: string
}

/** The grader's own state. Throws when it has no such base: then no session of this instance can be graded. */
export async function loadStart(place: GitPlace, exclude: readonly string[]): Promise<Start> {
  const result = await runGit(place, {
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
  const result = await runGit(place, options)
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
  const result = await runGit(place, options)
  if (result.exitCode === 0) return parseChanges(result.stdout)
  throw crashed(`The test patch does not apply to ${place.base}: ${tail(result.stderr, 1000)}`)
}

/** Which of an agent's changes are graded: those to write, and the rest with why not. */
export async function chooseChanges(
  place: GitPlace,
  start: Start,
  changes: readonly Change[],
  rules: Omit<Rules, 'existed' | 'isInBase'>,
): Promise<{ taken: Change[]; dropped: DroppedFile[] }> {
  const folders = new Set([...start.basePaths].flatMap(foldersOf))
  const decide = createPolicy({
    ...rules,
    existed: (path) => start.basePaths.has(path) || folders.has(path),
    isInBase: (path) => start.basePaths.has(path),
  })
  const taken: Change[] = []
  const dropped: DroppedFile[] = []
  for (const change of changes) {
    const decision: Decision = decide(change)
    if (decision.kind === 'take') taken.push(change)
    else if (decision.kind === 'drop') dropped.push({ path: change.path, why: decision.why })
    else {
      const merged = await mergePackage(place, start, change)
      if (merged === undefined) dropped.push({ path: change.path, why: 'protected' })
      else taken.push(merged)
    }
  }
  return keepFolders(start, taken, dropped)
}

/** A file or link in place of a folder would take files below it away that are to stay. */
function keepFolders(
  start: Start,
  taken: readonly Change[],
  dropped: readonly DroppedFile[],
): { taken: Change[]; dropped: DroppedFile[] } {
  const deleted = new Set(taken.filter(({ status }) => status === 'D').map(({ path }) => path))
  const kept = new Set([...start.basePaths].filter((path) => !deleted.has(path)).flatMap(foldersOf))
  const isInTheWay = ({ path, status }: Change): boolean => status !== 'D' && kept.has(path)
  return {
    taken: taken.filter((change) => !isInTheWay(change)),
    dropped: [...dropped, ...taken.filter(isInTheWay).map(({ path }) => ({ path, why: 'protected' }))],
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
  const result = await runGit(place, { script: WRITE, ...options })
  if (result.exitCode === 0) return { patch: result.stdout }
  assertEnded(result)
  return { patch: undefined, why: tail(result.stderr, 8000) || `git ended with ${result.exitCode}` }
}

async function mergePackage(place: GitPlace, start: Start, change: Change): Promise<Change | undefined> {
  // A new one configures whatever runs below it; a link is none.
  if (change.status !== 'M' || !change.mode.startsWith('100')) return change.status === 'D' ? undefined : plain(change)
  const read = (name: string) =>
    runGit(place, {
      script: 'ours final; git cat-file blob "$1"',
      args: [name],
      outputBytes: FILE_BYTES,
      timeoutMs: GIT_MS,
    })
  const [base, agents] = [await read(`${start.tree}:${change.path}`), await read(change.blob)]
  const merged = mergePackageJson(base.stdout.toString('utf8'), agents.stdout.toString('utf8'))
  if (merged === undefined) return undefined
  const written = await runGit(place, {
    script: 'ours final; git hash-object -w --stdin',
    stdin: merged,
    timeoutMs: GIT_MS,
  })
  return written.exitCode === 0 ? { ...change, blob: written.stdout.toString('utf8').trim() } : undefined
}

function plain(change: Change): Change | undefined {
  return change.mode.startsWith('100') ? change : undefined
}

/** `:oldmode newmode oldblob newblob status NUL path NUL`, again and again. */
function parseChanges(output: Buffer): Change[] {
  const parts = output.toString('utf8').split('\0')
  const changes: Change[] = []
  for (let index = 0; index + 1 < parts.length; index += 2) {
    const [, mode = '', , blob = '', status = ''] = parts[index]!.split(' ')
    changes.push({ path: parts[index + 1]!, mode, blob, status: status as Change['status'] })
  }
  return changes
}

function foldersOf(path: string): string[] {
  const parts = path.split('/')
  return parts.slice(1).map((_, index) => parts.slice(0, index + 1).join('/'))
}

/** Throws when git did not end by itself: its sandbox may have died, which is no verdict about the patch. */
function assertEnded({ exitCode, isTimedOut }: CommandResult): void {
  if (exitCode !== null || isTimedOut) return
  throw new RolloutError('runtime.gone', "git was killed in the grader's sandbox")
}

function crashed(message: string): RolloutError {
  return new RolloutError('evaluator.crashed', message)
}
