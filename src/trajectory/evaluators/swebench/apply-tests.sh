# Argument: tree of the grader. Applies the test patch on stdin to the tree and prints the changes.
# shellcheck disable=SC2154
cat > "$scratch/tests"
use_index tests
git read-tree "$1"
if [ -s "$scratch/tests" ]; then git apply --cached --whitespace=nowarn "$scratch/tests"; fi
git diff-tree -r -z --no-renames --no-abbrev "$1" "$(git write-tree)"
