import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { CommandResult, Workspace } from '../../model/workspace.ts'
import type { Change } from './change-policy.ts'
import { parseBlobs, parseChanges, parseIndex, type ChangeStore } from './choose-changes.ts'
import { tail } from './run-grading.ts'

const GIT_MS = 300_000
const LIST_BYTES = 64 * 1024 * 1024

/**
 * Start of every script: runs git without the repository's settings, hooks, filters and private ignore lists. `$1` is the
 * repository and `$2` a scratch folder.
 */
const OPEN = String.raw`set -eu
repo=$1 scratch=$2; shift 2
cd -- "$repo"
mkdir -p -- "$scratch"
for name in $(env | sed -n 's/^\(GIT_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
export HOME="$scratch" XDG_CONFIG_HOME="$scratch/none" GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 LC_ALL=C
printf '[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n\tautocrlf = false\n\tfsmonitor = false\n' > "$scratch/.gitconfig"
`
/** Creates a second git folder that uses the objects of the repository. */
const BORROW = String.raw`objects=$(cd -- "$(git rev-parse --git-path objects)" && pwd)
if [ ! -d "$scratch/git" ]; then
  git init -q --bare "$scratch/git"
  git --git-dir="$scratch/git" config core.bare false
  printf '%s\n' "$objects" > "$scratch/git/objects/info/alternates"
  mkdir -p "$scratch/git/info"
  printf '* -text -ident -filter !eol !working-tree-encoding\n' > "$scratch/git/info/attributes"
fi
export GIT_DIR="$scratch/git"
`

/** Exit codes of the scripts. */
const TOO_LARGE = 4
const UNAPPLIABLE = 5

/**
 * Archives all files of the repository that are not ignored, committed or not; all files if it is no longer a repository.
 * Skips nested repositories. Writes at most the allowed number of bytes, whatever sizes the files report.
 */
const ARCHIVE = String.raw`
git ls-files -z -c -o --exclude-standard > "$scratch/listed" 2>/dev/null || find . -name .git -prune -o ! -type d -print0 > "$scratch/listed"
xargs -0 sh -c 'for f; do if [ -L "$f" ] || { [ -e "$f" ] && [ ! -d "$f" ]; }; then printf "%s\0" "$f"; fi; done' sh < "$scratch/listed" > "$scratch/there"
{ tar --null --no-recursion --hard-dereference -T "$scratch/there" -cf - || echo failed > "$scratch/failed"; } | head -c "$(($1 + 1))" > "$scratch/tree.tar"
[ "$(wc -c < "$scratch/tree.tar")" -le "$1" ] || exit ${TOO_LARGE}
[ ! -e "$scratch/failed" ]
`

/** Writes the grader's and the agent's state as git trees and prints the difference. */
const COMPARE = String.raw`head=$(git rev-parse --verify -q 'HEAD^{commit}' || :)
${BORROW}
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/start"
if [ -n "$head" ]; then git read-tree "$head"; fi
git add -A -- . 2> "$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
start=$(git write-tree)
# From here on every failure is caused by the agent's files.
trap '[ $? -eq 0 ] || exit ${UNAPPLIABLE}' EXIT
if [ "$1" = patch ]; then
  cp "$scratch/start" "$scratch/agent"
  export GIT_INDEX_FILE="$scratch/agent"
  if ! git apply --cached --whitespace=nowarn "$scratch/submitted" 2> "$scratch/said"; then
    mkdir "$scratch/tree"
    git --work-tree="$scratch/tree" checkout-index -a -f
    (cd "$scratch/tree" && patch --batch --forward --fuzz=5 -p1 -s < "$scratch/submitted") >> "$scratch/said" 2>&1 || { tail -c 8000 "$scratch/said" >&2; exit ${UNAPPLIABLE}; }
    find "$scratch/tree" \( -name '*.orig' -o -name '*.rej' \) -delete
    (cd "$scratch/tree" && GIT_WORK_TREE="$scratch/tree" git add -A -f .)
  fi
else
  mkdir "$scratch/tree"
  tar -xpf "$scratch/submitted" -C "$scratch/tree"
  export GIT_INDEX_FILE="$scratch/agent"
  (cd "$scratch/tree" && GIT_WORK_TREE="$scratch/tree" git add -A -f . 2> "$scratch/said") || { cat "$scratch/said" >&2; exit 1; }
fi
printf '%s\n' "$start"
git diff-tree -r -z --no-renames --no-abbrev "$start" "$(git write-tree)"
`

/** Lists the files of a tree. */
const LIST_FILES = `${BORROW}
git ls-tree -r -z --name-only "$1"
`
/** Lists every file of the agent's tree with mode and object name. */
const LIST_AGENT = `${BORROW}
GIT_INDEX_FILE="$scratch/agent" git ls-files -s -z
`
/** Prints the objects whose names are on stdin. */
const READ_BLOBS = `${BORROW}
git cat-file --batch
`
const WRITE_BLOB = `${BORROW}
git hash-object -w --stdin
`

/** Writes the chosen files over the grader's state into the work tree. */
const WRITE = String.raw`cat > "$scratch/entries"
${BORROW}
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/final"
git read-tree "$1"
git update-index --replace -z --index-info < "$scratch/entries"
final=$(git write-tree)
git diff-tree -r -z --no-renames --name-only --diff-filter=D "$1" "$final" | xargs -0 -r rm -f --
git diff-tree -r -z --no-renames --name-only --diff-filter=d "$1" "$final" | git checkout-index -f -z --stdin
git diff-tree -p --binary --no-renames --no-ext-diff --no-textconv "$1" "$final"
rm -rf -- "$scratch"
`

export interface RepoDifference {
  changes: Change[]
  /** Files of the grader's own state. */
  basePaths: ReadonlySet<string>
  store: ChangeStore
  /** Applies the chosen changes and returns them as a patch. */
  write(chosen: readonly Change[]): Promise<Buffer>
}

/**
 * Copies a repository's files out of the agent's sandbox as an archive, which is not unpacked on this machine. Returns why the
 * files cannot be packed, else undefined. To find the cause, run `whyNotPacked` in a sandbox that the agent never entered.
 */
export async function collectTree(
  agent: Workspace,
  repo: string,
  target: string,
  maxBytes: number,
): Promise<string | undefined> {
  const scratch = newScratchFolder()
  const problem = await pack(agent, repo, scratch, maxBytes)
  if (problem === undefined) await agent.download(`${scratch}/tree.tar`, target, { maxBytes, maxFiles: 1 })
  return problem
}

/** Returns why the files of a repository cannot be packed; undefined if they can. */
export function whyNotPacked(workspace: Workspace, repo: string, maxBytes: number): Promise<string | undefined> {
  return pack(workspace, repo, newScratchFolder(), maxBytes)
}

async function pack(
  workspace: Workspace,
  repo: string,
  scratch: string,
  maxBytes: number,
): Promise<string | undefined> {
  const packed = await runIn(workspace, repo, scratch, { script: ARCHIVE, args: [String(maxBytes)] })
  if (packed.exitCode === 0) return undefined
  if (packed.exitCode === TOO_LARGE) return `there is more than ${maxBytes} bytes`
  return tail(packed.stderr, 500) || `exit code ${packed.exitCode}`
}

/**
 * Compares the agent's files or patch with a repository that the agent never entered. Runs no code of the agent. `changes` is
 * undefined, with the reason, if the patch cannot be applied or the archive cannot be unpacked.
 */
export async function compareTree(
  grader: Workspace,
  repo: string,
  submitted: { kind: 'tree' | 'patch'; file: string },
): Promise<RepoDifference | { changes: undefined; why: string }> {
  const scratch = newScratchFolder()
  await grader.upload(submitted.file, `${scratch}/submitted`)
  const compared = await runIn(grader, repo, scratch, { script: COMPARE, args: [submitted.kind] })
  const said = tail(compared.stderr, 8000)
  if (compared.exitCode === UNAPPLIABLE && !/No space left|Disk quota/.test(said)) {
    return { changes: undefined, why: said || 'the files cannot be read' }
  }
  if (compared.exitCode !== 0) throw crashed(repo, said)
  if (compared.stdoutBytes > compared.stdout.length) {
    return { changes: undefined, why: `the names of the changed files have more than ${LIST_BYTES} bytes` }
  }
  const end = compared.stdout.indexOf('\n')
  const start = compared.stdout.subarray(0, end).toString()
  const listed = await runIn(grader, repo, scratch, { script: LIST_FILES, args: [start] })
  if (listed.exitCode !== 0 || listed.stdoutBytes > listed.stdout.length) throw crashed(repo, tail(listed.stderr, 1000))
  return {
    changes: parseChanges(compared.stdout.subarray(end + 1)),
    basePaths: new Set(listed.stdout.toString('utf8').split('\0').slice(0, -1)),
    store: toStore(grader, repo, scratch),
    async write(chosen) {
      const entries = chosen.map(({ mode, blob, path, status }) =>
        status === 'D' ? `0 ${blob}\t${path}\0` : `${mode} ${blob}\t${path}\0`,
      )
      const written = await runIn(grader, repo, scratch, { script: WRITE, args: [start], stdin: entries.join('') })
      if (written.exitCode !== 0) throw crashed(repo, tail(written.stderr, 1000))
      return written.stdout
    },
  }
}

function toStore(grader: Workspace, repo: string, scratch: string): ChangeStore {
  return {
    repo: posix.resolve(grader.workdir, repo),
    async readBlobs(names) {
      const read = await runIn(grader, repo, scratch, { script: READ_BLOBS, stdin: `${names.join('\n')}\n` })
      return parseBlobs(read.stdout)
    },
    async writeBlob(text) {
      const written = await runIn(grader, repo, scratch, { script: WRITE_BLOB, stdin: text })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex((await runIn(grader, repo, scratch, { script: LIST_AGENT })).stdout)
    },
  }
}

function newScratchFolder(): string {
  return `/tmp/polar-${randomBytes(8).toString('hex')}`
}

function runIn(
  workspace: Workspace,
  repo: string,
  scratch: string,
  { script, args = [], stdin }: { script: string; args?: readonly string[]; stdin?: string },
): Promise<CommandResult> {
  return workspace.run({
    command: ['/bin/sh', '-c', OPEN + script, 'sh', repo, scratch, ...args],
    stdin,
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  })
}

function crashed(repo: string, said: string): RolloutError {
  return new RolloutError('evaluator.crashed', `${repo} in the grader's sandbox: ${said || 'git printed no message'}`)
}
