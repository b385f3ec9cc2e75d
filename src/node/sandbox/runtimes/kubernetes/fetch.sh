# Arguments: id, mark, bytes of stdout and of stderr that have arrived, pid of the waiter. For a broken connection: prints the
# rest of the output and the exit status, or an empty status while the command runs. `state` is the folder of our files.
# shellcheck disable=SC2086,SC2154
d=$state/$1 ending=; [ -d "$d" ] || exit 66
{ read -r ending < "$d/code"; } 2>/dev/null
if [ -z "$ending" ]; then
  { read -r line < "/proc/$5/stat"; } 2>/dev/null || line=') X'
  set -- "$1" "$2" "$3" "$4" ${line##*) }
  case "$5" in Z|X) ending="signal 137"; { read -r ending < "$d/code"; } 2>/dev/null;; esac
fi
tail -c "+$(($3 + 1))" "$d/out" 2>/dev/null
{ tail -c "+$(($4 + 1))" "$d/err" 2>/dev/null; } >&2
printf '%s' "$2 ended $ending;" >&2
