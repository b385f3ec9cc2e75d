# Arguments: id, most bytes of output, ids of finished commands whose folders are removed. Needs sweep.sh and count-oom.sh before
# it, and the folder of our files in `state`.
# Starts a command and stays with it while the connection lives. The command survives a broken connection: its output is also
# written to files, up to the limit, and its exit status to a file; fetch.sh reads both. Standard input carries the lengths of
# the start script and of the command's input, then both, then one request per line. Messages go to stdout before the command
# runs and to stderr afterwards, where each one begins with the mark of the start script. A command that kills its waiter is
# detected by a pipe that only the waiter holds open.
# The start script sets `mark` and defines `become`, which executes the command.
# shellcheck disable=SC2086,SC2154,SC2034,SC2069
umask 077; d=$state/$1 blocks=$(($2 / 512 + 1)); shift 2
for old do rm -rf "${state:?}/$old"; done
mkdir "$d" && mkfifo "$d/o" "$d/e" "$d/go" "$d/events" "$d/alive" || exit 125
read -r orderBytes inputBytes || exit 125
order=$(head -c "$orderBytes"; echo x)
eval "${order%x}"
order=
: > "$d/in"
[ "$inputBytes" -gt 0 ] && { echo send; head -c "$inputBytes" > "$d/in"; }
exec 5<&0 6<>"$d/events" 7<>"$d/go"
record() { trap '' PIPE XFSZ; (ulimit -f "$blocks"; exec tee "$1" 2>/dev/null); exec cat > /dev/null; }
record "$d/out" < "$d/o" 2>/dev/null 5<&- 6<&- 7<&- & r1=$!
record "$d/err" < "$d/e" 1>&2 5<&- 6<&- 7<&- & r2=$!
(
  exec > "$d/o" 2> "$d/e" < "$d/in" 5<&- 8> "$d/alive"; rm -f "$d/o" "$d/e" "$d/in"
  exec 3>&1 4>&2
  report=$(exec 2>&1; (
    exec >&3 2>&4 3>&- 4>&- 8>&-
    read -r first rest < /proc/self/stat; echo "first $first" >&6
    read -r go <&7; exec 6>&- 7>&-
    become
  ); echo "=$?")
  case "$report" in *=[0-9]*) ;; *) report="Killed=137";; esac
  code=${report##*=} how=exit
  [ "$code" -gt 128 ] && [ "$report" != "=$code" ] && how=signal
  exec > /dev/null 2>&1 3>&- 4>&-
  echo "$how $code" > "$d/draft"; mv "$d/draft" "$d/code"
  echo "ended $how $code" >&6
) & w=$!
(read -r nothing < "$d/alive"; echo gone >&6) 5<&- 7<&- &
read -r word first <&6
oom; echo "ready $r1 $r2 $w $first $killed"
(while read -r line; do echo "request $line" >&6; done; echo "request nothing" >&6) <&5 5<&- 7<&- &
reader=$!; exec 5<&-
echo >&7; exec 7<&-
ending=
while read -r word what rest <&6; do
  case "$word $what" in
    "ended "*) ending="$what $rest"; oom; printf '%s' "$mark ended $ending $killed;" >&2;;
    "gone "*) [ -n "$ending" ] || { ending="signal 137"; oom; printf '%s' "$mark ended $ending $killed;" >&2; };;
    "request signal") kill -s "$rest" "$first" 2>/dev/null;;
    "request leave") sweep list "$w" $rest; printf '%s' "$mark kept$found;" >&2;;
    "request end")
      sweep kill "$w" $rest || exit 3
      [ -n "$ending" ] || { oom; printf '%s' "$mark ended signal 137 $killed;" >&2; }
      kill "$reader" 2>/dev/null; wait "$r1" "$r2"; exit 0;;
    "request nothing") exit 0;;
  esac
done
