# Argument: most bytes. Writes all files of the repository that are not ignored, committed or not, to tree.tar; all files of the
# folder if it is no repository any more. Nested repositories are left out. Exits with 4 for an archive over the limit; no more
# than that is written, whatever sizes the files report.
# shellcheck disable=SC2016,SC2154
git ls-files -z -c -o --exclude-standard > "$scratch/listed" 2>/dev/null || find . -name .git -prune -o ! -type d -print0 > "$scratch/listed"
xargs -0 sh -c 'for f; do if [ -L "$f" ] || { [ -e "$f" ] && [ ! -d "$f" ]; }; then printf "%s\0" "$f"; fi; done' sh < "$scratch/listed" > "$scratch/there"
{ tar --null --no-recursion --hard-dereference -T "$scratch/there" -cf - || echo failed > "$scratch/failed"; } | head -c "$(($1 + 1))" > "$scratch/tree.tar"
[ "$(wc -c < "$scratch/tree.tar")" -le "$1" ] || exit 4
[ ! -e "$scratch/failed" ]
