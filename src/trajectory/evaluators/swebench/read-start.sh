# Prints the tree of the repository as it is in the grader, then the paths of the base commit.
# shellcheck disable=SC2154
[ -n "$base" ] || exit 3
use_index start
git read-tree "$base"
add_all "$@"
git write-tree
git ls-tree -r -z --name-only "$base"
