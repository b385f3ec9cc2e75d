# Argument: `patch` or `tree`. Prints the tree of the grader, then the changes that the submitted patch or archive makes.
# Exits with 5 if the submission cannot be applied.
# shellcheck disable=SC2154
head=$(git rev-parse --verify -q 'HEAD^{commit}' || :)
borrow_objects
export GIT_WORK_TREE="$PWD" GIT_INDEX_FILE="$scratch/start"
if [ -n "$head" ]; then git read-tree "$head"; fi
git add -A -- . 2> "$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
start=$(git write-tree)
# From here on, every failure is caused by the agent's files.
trap '[ $? -eq 0 ] || exit 5' EXIT
if [ "$1" = patch ]; then
  cp "$scratch/start" "$scratch/agent"
  export GIT_INDEX_FILE="$scratch/agent"
  if ! git apply --cached --whitespace=nowarn "$scratch/submitted" 2> "$scratch/said"; then
    mkdir "$scratch/tree"
    git --work-tree="$scratch/tree" checkout-index -a -f
    (cd "$scratch/tree" && patch --batch --forward --fuzz=5 -p1 -s < "$scratch/submitted") >> "$scratch/said" 2>&1 || { tail -c 8000 "$scratch/said" >&2; exit 5; }
    find "$scratch/tree" \( -name '*.orig' -o -name '*.rej' \) -delete
    (cd "$scratch/tree" && GIT_WORK_TREE="$scratch/tree" git add -A -f .)
  fi
else
  mkdir "$scratch/tree"
  tar -xpf "$scratch/submitted" -C "$scratch/tree"
  export GIT_INDEX_FILE="$scratch/agent"
  (cd "$scratch/tree" && GIT_WORK_TREE="$scratch/tree" git add -A -f . 2> "$scratch/said") || { cat "$scratch/said" >&2; exit 1; }
fi
printf '%s\n' "$start"
git diff-tree -r -z --no-renames --no-abbrev "$start" "$(git write-tree)"
