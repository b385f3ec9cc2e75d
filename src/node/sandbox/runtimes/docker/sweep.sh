# Arguments: mode, pids. With mode `kill`, kills every process of this user except itself and the ancestors and descendants of
# the given pids; with `list`, prints their pids. Uses shell builtins only, because the image may have no other programs.
# shellcheck disable=SC2086,SC2154,SC2034
mode=$1; shift; spared=" $* "; me=$$; uid=$(id -u); round=0
for pid in $spared; do
  while { read -r line < "/proc/$pid/stat"; } 2>/dev/null; do set -- ${line##*) }; pid=$2; spared="$spared$pid "; done
done
while [ "$round" -lt 100 ]; do
  round=$((round+1)); found=
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}; at=$pid
    [ "$pid" = 1 ] && continue
    while :; do
      case "$at" in 0|1) break;; "$me") continue 2;; esac
      case "$spared" in *" $at "*) continue 2;; esac
      { read -r line < "/proc/$at/stat"; } 2>/dev/null || continue 2
      set -- ${line##*) }
      [ "$at" = "$pid" ] && case "$1" in Z|X) continue 2;; esac
      at=$2
    done
    who=; while read -r key real rest; do [ "$key" = Uid: ] && { who=$real; break; }; done 2>/dev/null < "$folder/status"
    [ "$who" = "$uid" ] || continue
    [ "$uid" = 0 ] && case "$line" in *"(sleep)"*) continue;; esac
    found="$found $pid"
  done
  [ "$mode" = list ] && { echo $found; exit 0; }
  [ -z "$found" ] && exit 0
  kill -9 $found 2>/dev/null
done
exit 1
