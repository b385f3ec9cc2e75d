# Argument: tree of the grader. Replaces the index entries on stdin in the tree, updates the work tree and prints the patch.
# shellcheck disable=SC2154
cat > "$scratch/entries"
use_index final
git read-tree "$1"
git update-index --replace -z --index-info < "$scratch/entries"
final=$(git write-tree)
git diff-tree -r -z --no-renames --name-only --diff-filter=D "$1" "$final" | xargs -0 -r rm -f --
git diff-tree -r -z --no-renames --name-only --diff-filter=d "$1" "$final" | git checkout-index -f -z --stdin
git diff-tree -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color "$1" "$final"
