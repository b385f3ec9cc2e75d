# Argument: tree of the grader. Replaces the index entries on stdin in the tree, updates the work tree and prints the patch.
# shellcheck disable=SC2154
cat > "$scratch/entries"
borrow_objects
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/final"
git read-tree "$1"
git update-index --replace -z --index-info < "$scratch/entries"
final=$(git write-tree)
git diff-tree -r -z --no-renames --name-only --diff-filter=D "$1" "$final" | xargs -0 -r rm -f --
git diff-tree -r -z --no-renames --name-only --diff-filter=d "$1" "$final" | git checkout-index -f -z --stdin
git diff-tree -p --binary --no-renames --no-ext-diff --no-textconv "$1" "$final"
rm -rf -- "$scratch"
