# Arguments: repository, scratch folder. Prefix of every script: git ignores settings, hooks, filters and private ignore lists of
# the repository and has an index of its own.
set -eu
repo=$1 scratch=$2; shift 2
cd -- "$repo"
mkdir -p -- "$scratch"
for name in $(env | sed -n 's/^\(GIT_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
export HOME="$scratch" XDG_CONFIG_HOME="$scratch/none" GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 LC_ALL=C
printf '[safe]\n\tdirectory = *\n[core]\n\thooksPath = /dev/null\n\tautocrlf = false\n\tfsmonitor = false\n' > "$scratch/.gitconfig"
# Creates another git folder, which borrows the objects of the repository.
borrow_objects() {
  objects=$(cd -- "$(git rev-parse --git-path objects)" && pwd)
  if [ ! -d "$scratch/git" ]; then
    git init -q --bare "$scratch/git"
    git --git-dir="$scratch/git" config core.bare false
    printf '%s\n' "$objects" > "$scratch/git/objects/info/alternates"
    mkdir -p "$scratch/git/info"
    printf '* -text -ident -filter !eol !working-tree-encoding\n' > "$scratch/git/info/attributes"
  fi
  export GIT_DIR="$scratch/git"
}
