import type { CommandResult, Workspace } from '../../../model/workspace.ts'

/**
 * Start of every script: creates a separate git folder that uses the repository's objects. The repository's settings, hooks,
 * attributes, private ignore lists, index and references have no effect, and the repository is not changed. Files are read
 * byte for byte. Arguments: the repository, a scratch folder, a commit. `$base` is empty if the commit does not exist.
 */
const OPEN = String.raw`set -eu
repo=$1 scratch=$2 wanted=$3; shift 3
cd -- "$repo"
mkdir -p -- "$scratch"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CONFIG_PARAMETERS
export HOME="$scratch" XDG_CONFIG_HOME="$scratch/none" GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export LC_ALL=C GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1
printf '[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n\tautocrlf = false\n\tfsmonitor = false\n' > "$scratch/.gitconfig"
base=$(git rev-parse --verify -q "$wanted^{commit}" || :)
if ! [ -d "$scratch/git" ]; then
  objects=$(cd -- "$(git rev-parse --git-path objects)" && pwd)
  git init -q --bare "$scratch/git"
  git --git-dir="$scratch/git" config core.bare false
  git --git-dir="$scratch/git" config core.fileMode true
  git --git-dir="$scratch/git" config core.symlinks true
  printf '%s\n' "$objects" > "$scratch/git/objects/info/alternates"
  mkdir -p "$scratch/git/info"
  printf '* -text -ident -filter !eol !diff !merge !working-tree-encoding\n' > "$scratch/git/info/attributes"
fi
ours() { export GIT_DIR="$scratch/git" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/index.$1"; }
`

/** Adds the work tree to the index, except for pathspecs in the arguments, nested repositories and unreadable files. */
export const ADD_ALL = String.raw`find . -mindepth 2 -name .git -prune -print | sed -e 's|^\.||' -e 's|\.git$||' -e 's|[][*?\\]|\\&|g' > "$scratch/git/info/exclude"
git add -A --ignore-errors -- . "$@" 2> "$scratch/said" || :
if grep -q '^fatal:\|No space left' "$scratch/said"; then cat "$scratch/said" >&2; exit 1; fi
`

export interface GitTarget {
  workspace: Workspace
  /** Path of the repository. */
  repo: string
  /** Folder of the separate git folder. Must not exist before the first script. */
  scratch: string
  base: string
}

export interface GitScript {
  /** Script without the common start. */
  script: string
  args?: readonly string[]
  stdin?: string | Uint8Array
  outputBytes?: number
  timeoutMs?: number
}

/** Runs a script in a repository with the separate git folder. */
export function runGitInSandbox(
  { workspace, repo, scratch, base }: GitTarget,
  options: GitScript,
): Promise<CommandResult> {
  const { script, args = [], ...rest } = options
  return workspace.run({ command: ['/bin/sh', '-c', `${OPEN}${script}`, 'sh', repo, scratch, base, ...args], ...rest })
}

const FIND = `for place in "$@"; do if [ -e "$place/.git" ]; then printf %s "$place"; exit; fi; done
printf %s none`

/** Returns the path of the repository: the configured one, else SWE-bench's, else the workdir. */
export async function findRepo(workspace: Workspace, configured: string | undefined): Promise<string> {
  if (configured !== undefined) return configured
  const command = ['/bin/sh', '-c', FIND, 'sh', '/testbed', workspace.workdir] as const
  const { stdout } = await workspace.run({ command, timeoutMs: 30_000 })
  const place = stdout.toString('utf8')
  return place === '/testbed' ? place : workspace.workdir
}
