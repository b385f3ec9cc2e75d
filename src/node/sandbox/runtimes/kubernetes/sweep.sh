# sweep MODE DOOMED ROOT...: with mode `kill`, kills every process below the pids DOOMED and every orphan, except the pids ROOT
# and their descendants; with `list`, stores the pids in `found`. A process that the container engine started for us has parent
# 0, which no process inside can have, so it is no orphan. Uses shell builtins only, because the image may have no other
# programs.
# shellcheck disable=SC2086,SC2034
sweep() {
  mode=$1 doomed=" $2 " round=0; shift 2; roots=" $* "
  while [ "$round" -lt 200 ]; do
    round=$((round+1)) found=
    for folder in /proc/[0-9]*; do
      pid=${folder#/proc/} at=$pid
      [ "$pid" = 1 ] && continue
      { read -r line < "/proc/$pid/stat"; } 2>/dev/null || continue
      set -- ${line##*) }
      case "$1" in Z|X) continue;; esac
      parent=$2
      while :; do
        case "$roots" in *" $at "*) continue 2;; esac
        case "$doomed" in *" $at "*) break;; esac
        case "$parent" in 0) continue 2;; 1) break;; esac
        at=$parent
        { read -r up < "/proc/$at/stat"; } 2>/dev/null || continue 2
        set -- ${up##*) }
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
