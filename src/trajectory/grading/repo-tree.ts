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
 * Begins every script: git with nothing of a repository's settings, hooks, filters and private ignore lists, and an index
 * of its own. `$1` is the repository and `$2` a folder of ours.
 */
const OPEN = String.raw`set -eu
repo=$1 room=$2; shift 2
cd -- "$repo"
mkdir -p -- "$room"
for name in $(env | sed -n 's/^\(GIT_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
export HOME="$room" XDG_CONFIG_HOME="$room/none" GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 LC_ALL=C
printf '[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n\tautocrlf = false\n\tfsmonitor = false\n' > "$room/.gitconfig"
`
/** Another git folder that borrows the objects of the repository. */
const BORROW = String.raw`objects=$(cd -- "$(git rev-parse --git-path objects)" && pwd)
if [ ! -d "$room/git" ]; then
  git init -q --bare "$room/git"
  git --git-dir="$room/git" config core.bare false
  printf '%s\n' "$objects" > "$room/git/objects/info/alternates"
  mkdir -p "$room/git/info"
  printf '* -text -ident -filter !eol !working-tree-encoding\n' > "$room/git/info/attributes"
fi
export GIT_DIR="$room/git"
`

/** What ends a script early, and says why. */
const TOO_LARGE = 4
const UNAPPLIABLE = 5

/**
 * All files of the repository that are not ignored, committed or not, as an archive. Where it is no repository any more, all
 * there is. A repository within the repository is left out. No more is written than may be, whatever the files say they are.
 */
const ARCHIVE = String.raw`
git ls-files -z -c -o --exclude-standard > "$room/listed" 2>/dev/null || find . -name .git -prune -o ! -type d -print0 > "$room/listed"
xargs -0 sh -c 'for f; do if [ -L "$f" ] || { [ -e "$f" ] && [ ! -d "$f" ]; }; then printf "%s\0" "$f"; fi; done' sh < "$room/listed" > "$room/there"
{ tar --null --no-recursion --hard-dereference -T "$room/there" -cf - || echo failed > "$room/failed"; } | head -c "$(($1 + 1))" > "$room/tree.tar"
[ "$(wc -c < "$room/tree.tar")" -le "$1" ] || exit ${TOO_LARGE}
[ ! -e "$room/failed" ]
`

/** The grader's own state, and the agent's, as trees; then what differs. */
const COMPARE = String.raw`head=$(git rev-parse --verify -q 'HEAD^{commit}' || :)
${BORROW}
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$room/start"
if [ -n "$head" ]; then git read-tree "$head"; fi
git add -A -- . 2> "$room/said" || { cat "$room/said" >&2; exit 1; }
start=$(git write-tree)
# From here on every failure is one of the agent's files.
trap '[ $? -eq 0 ] || exit ${UNAPPLIABLE}' EXIT
if [ "$1" = patch ]; then
  cp "$room/start" "$room/agent"
  export GIT_INDEX_FILE="$room/agent"
  if ! git apply --cached --whitespace=nowarn "$room/submitted" 2> "$room/said"; then
    mkdir "$room/tree"
    git --work-tree="$room/tree" checkout-index -a -f
    (cd "$room/tree" && patch --batch --forward --fuzz=5 -p1 -s < "$room/submitted") >> "$room/said" 2>&1 || { tail -c 8000 "$room/said" >&2; exit ${UNAPPLIABLE}; }
    find "$room/tree" \( -name '*.orig' -o -name '*.rej' \) -delete
    (cd "$room/tree" && GIT_WORK_TREE="$room/tree" git add -A -f .)
  fi
else
  mkdir "$room/tree"
  tar -xpf "$room/submitted" -C "$room/tree"
  export GIT_INDEX_FILE="$room/agent"
  (cd "$room/tree" && GIT_WORK_TREE="$room/tree" git add -A -f . 2> "$room/said") || { cat "$room/said" >&2; exit 1; }
fi
printf '%s\n' "$start"
git diff-tree -r -z --no-renames --no-abbrev "$start" "$(git write-tree)"
`

/** Names of the files of a tree. */
const LIST_FILES = `${BORROW}
git ls-tree -r -z --name-only "$1"
`
/** Every file of the agent's tree, with mode and object name. */
const LIST_AGENT = `${BORROW}
GIT_INDEX_FILE="$room/agent" git ls-files -s -z
`
/** Contents of the objects whose names are read from stdin. */
const READ_BLOBS = `${BORROW}
git cat-file --batch
`
const WRITE_BLOB = `${BORROW}
git hash-object -w --stdin
`

/** Brings the work tree to the grader's state with the chosen files. */
const WRITE = String.raw`cat > "$room/entries"
${BORROW}
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$room/final"
git read-tree "$1"
git update-index --replace -z --index-info < "$room/entries"
final=$(git write-tree)
git diff-tree -r -z --no-renames --name-only --diff-filter=D "$1" "$final" | xargs -0 -r rm -f --
git diff-tree -r -z --no-renames --name-only --diff-filter=d "$1" "$final" | git checkout-index -f -z --stdin
git diff-tree -p --binary --no-renames --no-ext-diff --no-textconv "$1" "$final"
rm -rf -- "$room"
`

export interface RepoDifference {
  changes: Change[]
  /** Files of the grader's own state. */
  basePaths: ReadonlySet<string>
  store: ChangeStore
  /** Applies those that are chosen; gives them as a patch. */
  write(chosen: readonly Change[]): Promise<Buffer>
}

/**
 * Copies a repository's files out of the agent's sandbox, as an archive that no one here looks into. Gives why not, where
 * they cannot be packed: whose doing that is can only be told where the agent has not been, with `whyNotPacked`.
 */
export async function collectTree(
  agent: Workspace,
  repo: string,
  target: string,
  maxBytes: number,
): Promise<string | undefined> {
  const room = newRoom()
  const problem = await pack(agent, repo, room, maxBytes)
  if (problem === undefined) await agent.download(`${room}/tree.tar`, target, { maxBytes, maxFiles: 1 })
  return problem
}

/** Why the files of a repository cannot be packed; undefined when they can. */
export function whyNotPacked(workspace: Workspace, repo: string, maxBytes: number): Promise<string | undefined> {
  return pack(workspace, repo, newRoom(), maxBytes)
}

async function pack(workspace: Workspace, repo: string, room: string, maxBytes: number): Promise<string | undefined> {
  const packed = await runIn(workspace, repo, room, { script: ARCHIVE, args: [String(maxBytes)] })
  if (packed.exitCode === 0) return undefined
  if (packed.exitCode === TOO_LARGE) return `there is more than ${maxBytes} bytes`
  return tail(packed.stderr, 500) || `exit code ${packed.exitCode}`
}

/**
 * What the agent's files or patch make different in a repository that the agent was never in. Nothing of the agent's runs
 * for it. Undefined, with why, when a patch cannot be applied or an archive cannot be unpacked.
 */
export async function compareTree(
  grader: Workspace,
  repo: string,
  submitted: { kind: 'tree' | 'patch'; file: string },
): Promise<RepoDifference | { changes: undefined; why: string }> {
  const room = newRoom()
  await grader.upload(submitted.file, `${room}/submitted`)
  const compared = await runIn(grader, repo, room, { script: COMPARE, args: [submitted.kind] })
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
  const listed = await runIn(grader, repo, room, { script: LIST_FILES, args: [start] })
  if (listed.exitCode !== 0 || listed.stdoutBytes > listed.stdout.length) throw crashed(repo, tail(listed.stderr, 1000))
  return {
    changes: parseChanges(compared.stdout.subarray(end + 1)),
    basePaths: new Set(listed.stdout.toString('utf8').split('\0').slice(0, -1)),
    store: toStore(grader, repo, room),
    async write(chosen) {
      const entries = chosen.map(({ mode, blob, path, status }) =>
        status === 'D' ? `0 ${blob}\t${path}\0` : `${mode} ${blob}\t${path}\0`,
      )
      const written = await runIn(grader, repo, room, { script: WRITE, args: [start], stdin: entries.join('') })
      if (written.exitCode !== 0) throw crashed(repo, tail(written.stderr, 1000))
      return written.stdout
    },
  }
}

function toStore(grader: Workspace, repo: string, room: string): ChangeStore {
  return {
    repo: posix.resolve(grader.workdir, repo),
    async readBlobs(names) {
      const read = await runIn(grader, repo, room, { script: READ_BLOBS, stdin: `${names.join('\n')}\n` })
      return parseBlobs(read.stdout)
    },
    async writeBlob(text) {
      const written = await runIn(grader, repo, room, { script: WRITE_BLOB, stdin: text })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex((await runIn(grader, repo, room, { script: LIST_AGENT })).stdout)
    },
  }
}

function newRoom(): string {
  return `/tmp/polar-${randomBytes(8).toString('hex')}`
}

function runIn(
  workspace: Workspace,
  repo: string,
  room: string,
  { script, args = [], stdin }: { script: string; args?: readonly string[]; stdin?: string },
): Promise<CommandResult> {
  return workspace.run({
    command: ['/bin/sh', '-c', OPEN + script, 'sh', repo, room, ...args],
    ...(stdin !== undefined && { stdin }),
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  })
}

function crashed(repo: string, said: string): RolloutError {
  return new RolloutError('evaluator.crashed', `${repo} in the grader's sandbox: ${said || 'git said nothing'}`)
}
