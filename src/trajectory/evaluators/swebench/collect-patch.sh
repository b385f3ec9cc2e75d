# Arguments: largest file in bytes, pathspecs to exclude. Prints all changes of the work tree against the base commit as a patch:
# committed or not, staged or not, tracked or not; ignored files only if the agent made git track them. Exits with 3 without a
# base commit and with 4 for a file over the limit, before the file is read.
# shellcheck disable=SC2154
limit=$1; shift
trap 'rm -rf -- "$scratch"' EXIT
[ -n "$base" ] || exit 3
git diff --cached --no-ext-diff --name-only --no-renames --diff-filter=A -z "$base" > "$scratch/tracked" 2> /dev/null || :
use_index all
git read-tree "$base"
big=$(find . -name .git -prune -o -type f -size +"$limit"c -print0 |
  GIT_LITERAL_PATHSPECS=1 xargs -0 -r git ls-files -o -m --exclude-standard -- | head -n 1)
[ -z "$big" ] || { printf '%s' "$big" >&2; exit 4; }
add_all "$@"
git update-index --add --remove -z --stdin < "$scratch/tracked" 2> /dev/null || :
git diff-index --cached -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/ "$base"
