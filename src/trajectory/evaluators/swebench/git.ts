import type { CommandResult, Workspace } from '../../../model/workspace.ts'

/**
 * Begins every script: a git folder of our own that borrows the repository's objects. So nothing of the repository's
 * settings, hooks, attributes, private ignore lists, index or references has a say, and nothing in it is changed. Files are
 * taken as the bytes they are. Takes the repository, a folder for the git folder, and a commit; leaves `$base` empty where
 * there is no such commit.
 */
const OPEN = String.raw`set -eu
repo=$1 room=$2 wanted=$3; shift 3
cd -- "$repo"
mkdir -p -- "$room"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CONFIG_PARAMETERS
export HOME="$room" XDG_CONFIG_HOME="$room/none" GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export LC_ALL=C GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1
printf '[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n\tautocrlf = false\n\tfsmonitor = false\n' > "$room/.gitconfig"
base=$(git rev-parse --verify -q "$wanted^{commit}" || :)
if ! [ -d "$room/git" ]; then
  objects=$(cd -- "$(git rev-parse --git-path objects)" && pwd)
  git init -q --bare "$room/git"
  git --git-dir="$room/git" config core.bare false
  git --git-dir="$room/git" config core.fileMode true
  git --git-dir="$room/git" config core.symlinks true
  printf '%s\n' "$objects" > "$room/git/objects/info/alternates"
  mkdir -p "$room/git/info"
  printf '* -text -ident -filter !eol !diff !merge !working-tree-encoding\n' > "$room/git/info/attributes"
fi
ours() { export GIT_DIR="$room/git" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$room/index.$1"; }
`

/**
 * Adds all of the work tree to the index but for pathspecs in the arguments, for repositories within the repository, and for
 * what cannot be read.
 */
export const ADD_ALL = String.raw`find . -mindepth 2 -name .git -prune -print | sed -e 's|^\.||' -e 's|\.git$||' -e 's|[][*?\\]|\\&|g' > "$room/git/info/exclude"
git add -A --ignore-errors -- . "$@" 2> "$room/said" || :
if grep -q '^fatal:\|No space left' "$room/said"; then cat "$room/said" >&2; exit 1; fi
`

export interface GitPlace {
  workspace: Workspace
  /** Where the repository is. */
  repo: string
  /** Where our git folder is; nothing is there yet when it is first used. */
  room: string
  base: string
}

export interface GitScript {
  /** Follows the beginning. */
  script: string
  args?: readonly string[]
  stdin?: string | Uint8Array
  outputBytes?: number
  timeoutMs?: number
}

/** Runs a script beside a repository, with the git folder of ours. */
export function runGitInSandbox({ workspace, repo, room, base }: GitPlace, options: GitScript): Promise<CommandResult> {
  const { script, args = [], ...rest } = options
  return workspace.run({ command: ['/bin/sh', '-c', `${OPEN}${script}`, 'sh', repo, room, base, ...args], ...rest })
}

const FIND = `for place in "$@"; do if [ -e "$place/.git" ]; then printf %s "$place"; exit; fi; done
printf %s none`

/** The repository: as configured, else where SWE-bench has it, else where work begins. */
export async function findRepo(workspace: Workspace, configured: string | undefined): Promise<string> {
  if (configured !== undefined) return configured
  const command = ['/bin/sh', '-c', FIND, 'sh', '/testbed', workspace.workdir] as const
  const { stdout } = await workspace.run({ command, timeoutMs: 30_000 })
  const place = stdout.toString('utf8')
  return place === '/testbed' ? place : workspace.workdir
}
