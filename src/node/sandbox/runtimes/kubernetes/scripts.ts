/** Where our own files are in a pod: a volume, so that it can be written to whatever the image allows. */
export const STATE = '/.polar'

/**
 * What a first process does: nothing, but have those reaped that others leave behind. Being first, nobody inside can end
 * it. Where `env` cannot ignore a signal (other than GNU's), a shell waits for a child instead.
 */
export const HOLD =
  'env --ignore-signal=CHLD true 2>/dev/null && exec env --ignore-signal=CHLD sleep 2147483647; while :; do sleep 2147483647 & wait; done'

/**
 * sweep MODE DOOMED ROOT...: with `kill`, ends every process below DOOMED, and every one that has lost its parent, but for
 * those that are ROOTs or below one; with `list`, leaves them in `found`. What the engine brought in for us (its parent is
 * 0, which nothing inside can have) is no orphan. A shell's own words only, because there may be no others.
 */
const SWEEP = `
sweep() {
  mode=$1 doomed=" $2 " round=0; shift 2; roots=" $* "
  while [ "$round" -lt 200 ]; do
    round=$((round+1)) found=
    for folder in /proc/[0-9]*; do
      pid=\${folder#/proc/} at=$pid
      [ "$pid" = 1 ] && continue
      { read -r line < "/proc/$pid/stat"; } 2>/dev/null || continue
      set -- \${line##*) }
      case "$1" in Z|X) continue;; esac
      parent=$2
      while :; do
        case "$roots" in *" $at "*) continue 2;; esac
        case "$doomed" in *" $at "*) break;; esac
        case "$parent" in 0) continue 2;; 1) break;; esac
        at=$parent
        { read -r up < "/proc/$at/stat"; } 2>/dev/null || continue 2
        set -- \${up##*) }
        parent=$2
      done
      case "$line" in *"(sleep) "?" 1 "*) { IFS= read -r words < "$folder/cmdline"; } 2>/dev/null
        [ "$words" = sleep2147483647 ] && continue;; esac
      found="$found $pid"
    done
    [ "$mode" = list ] && return 0
    [ -z "$found" ] && return 0
    kill -9 $found 2>/dev/null
  done
  return 1
}
`

/** How often the kernel has killed for want of memory, as far as the container may know. */
const COUNT_OOM = `
oom() {
  killed=
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r key value; do [ "$key" = oom_kill ] && killed=$value; done 2>/dev/null < "$file"
  done
}
`

/**
 * LAUNCH ID MAX OLD...: brings a command in and stays with it as long as the connection lives. The command does not need
 * it: what it writes is kept in files as well, up to MAX bytes, and how it ended is in one; \`FETCH\` finds both. On its
 * input come the lengths of the order and of the command's input, and these; then lines that ask for something. It answers
 * on stdout before the command runs, and afterwards on stderr, with a mark in front that is in the order. A command that
 * kills whoever waits for it is seen to be gone by a pipe that only that one holds open.
 *
 * The order is a script that sets \`mark\`, and \`become\`, which ends in the command.
 */
export const LAUNCH = `${SWEEP}${COUNT_OOM}
umask 077; d=${STATE}/$1 blocks=$(($2 / 512 + 1)); shift 2
for old do rm -rf "${STATE}/$old"; done
mkdir "$d" && mkfifo "$d/o" "$d/e" "$d/go" "$d/events" "$d/alive" || exit 125
read -r orderBytes inputBytes || exit 125
order=$(head -c "$orderBytes"; echo x)
eval "\${order%x}"
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
  said=$(exec 2>&1; (
    exec >&3 2>&4 3>&- 4>&- 8>&-
    read -r first rest < /proc/self/stat; echo "first $first" >&6
    read -r go <&7; exec 6>&- 7>&-
    become
  ); echo "=$?")
  case "$said" in *=[0-9]*) ;; *) said="Killed=137";; esac
  code=\${said##*=} how=exit
  [ "$code" -gt 128 ] && [ "$said" != "=$code" ] && how=signal
  exec > /dev/null 2>&1 3>&- 4>&-
  echo "$how $code" > "$d/draft"; mv "$d/draft" "$d/code"
  echo "ended $how $code" >&6
) & w=$!
(read -r nothing < "$d/alive"; echo gone >&6) 5<&- 7<&- &
read -r word first <&6
oom; echo "ready $r1 $r2 $w $first $killed"
(while read -r line; do echo "ask $line" >&6; done; echo "ask nothing" >&6) <&5 5<&- 7<&- &
reader=$!; exec 5<&-
echo >&7; exec 7<&-
ending=
while read -r word what rest <&6; do
  case "$word $what" in
    "ended "*) ending="$what $rest"; oom; printf '%s' "$mark ended $ending $killed;" >&2;;
    "gone "*) [ -n "$ending" ] || { ending="signal 137"; oom; printf '%s' "$mark ended $ending $killed;" >&2; };;
    "ask signal") kill -s "$rest" "$first" 2>/dev/null;;
    "ask leave") sweep list "$w" $rest; printf '%s' "$mark kept$found;" >&2;;
    "ask end")
      sweep kill "$w" $rest || exit 3
      [ -n "$ending" ] || { oom; printf '%s' "$mark ended signal 137 $killed;" >&2; }
      kill "$reader" 2>/dev/null; wait "$r1" "$r2"; exit 0;;
    "ask nothing") exit 0;;
  esac
done
`

/** FETCH ID MARK OUT ERR W: what was written since, and how it ended or whether it goes on; for a connection that broke. */
export const FETCH = `
d=${STATE}/$1 ending=; [ -d "$d" ] || exit 66
{ read -r ending < "$d/code"; } 2>/dev/null
if [ -z "$ending" ]; then
  { read -r line < "/proc/$5/stat"; } 2>/dev/null || line=') X'
  set -- "$1" "$2" "$3" "$4" \${line##*) }
  case "$5" in Z|X) ending="signal 137"; { read -r ending < "$d/code"; } 2>/dev/null;; esac
fi
tail -c "+$(($3 + 1))" "$d/out" 2>/dev/null
{ tail -c "+$(($4 + 1))" "$d/err" 2>/dev/null; } >&2
printf '%s' "$2 ended $ending;" >&2
`

/** SWEEP_TOOL MODE DOOMED ROOT...: the same without a command of ours beside it. */
export const SWEEP_TOOL = `${SWEEP}
sweep "$@" && echo $found
`

/** PREPARE FOLDER...: makes those where they can be made, and tells who commands are and what the image gives them. */
export const PREPARE = `
for folder do
  mkdir -p -- "$folder" 2>/dev/null; [ -w "$folder" ] || { echo "user $(id -u) cannot write to $folder" >&2; exit 1; }
done
chmod 0755 ${STATE} 2>/dev/null
id -u && id -g && echo "$HOME" && cat /proc/1/environ
`

export const STATS = `
for file in memory.current memory/memory.usage_in_bytes; do
  { read -r bytes < "/sys/fs/cgroup/$file"; } 2>/dev/null && { echo "memory $bytes"; break; }
done
while read -r key value; do [ "$key" = usage_usec ] && echo "cpu $value"; done 2>/dev/null < /sys/fs/cgroup/cpu.stat
for file in cpuacct cpu,cpuacct; do
  { read -r value < "/sys/fs/cgroup/$file/cpuacct.usage"; } 2>/dev/null && { echo "cpu $((value / 1000))"; break; }
done
set -- "$1" /proc/[0-9]*; echo "processes $(($# - 2))"
used=$(du -skx -- "$1" 2>/dev/null) && echo "disk \${used%%[!0-9]*}"
`
