# Argument: tree of the grader. Applies the patch on stdin to the base commit, with patch(1), which is more lenient, if git
# rejects it. Prints the changes against the tree.
# shellcheck disable=SC2154
cat > "$scratch/patch"
use_index agent
git read-tree "$base"
if ! git apply --cached --whitespace=nowarn "$scratch/patch" 2> "$scratch/said"; then
  mkdir "$scratch/tree"
  git --work-tree="$scratch/tree" checkout-index -a -f
  (cd "$scratch/tree" && patch --batch --forward --fuzz=5 -p1 -s < "$scratch/patch") >> "$scratch/said" 2>&1 || { tail -c 2000 "$scratch/said" >&2; exit 5; }
  (cd "$scratch/tree" && find . \( -name '*.orig' -o -name '*.rej' \) -delete && GIT_WORK_TREE="$scratch/tree" git add -A -f .)
fi
git diff-tree -r -z --no-renames --no-abbrev "$1" "$(git write-tree)"
