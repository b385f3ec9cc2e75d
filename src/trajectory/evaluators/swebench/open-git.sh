# Arguments: repository, scratch folder, commit. Prefix of every script: creates a git folder that borrows the repository's
# objects, so that settings, hooks, attributes, private ignore lists, index and references of the repository have no effect and
# nothing in the repository changes. Files are used byte by byte. `$base` is empty if the commit does not exist.
# shellcheck disable=SC2034
set -eu
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
use_index() { export GIT_DIR="$scratch/git" GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/index.$1"; }
# Adds the whole work tree to the index, except pathspecs in the arguments, nested repositories and unreadable files.
add_all() {
  find . -mindepth 2 -name .git -prune -print | sed -e 's|^\.||' -e 's|\.git$||' -e 's|[][*?\\]|\\&|g' > "$scratch/git/info/exclude"
  git add -A --ignore-errors -- . "$@" 2> "$scratch/said" || :
  if grep -q '^fatal:\|No space left' "$scratch/said"; then cat "$scratch/said" >&2; exit 1; fi
}
