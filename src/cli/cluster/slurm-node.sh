# Runs the node, and restarts it if it crashes. Each start of the job has a folder of its own: when Slurm moves the task to
# another machine, the process on the first machine may still be alive and write. The next start adopts results in the earlier
# folders that were finished but not delivered.
# shellcheck shell=bash disable=SC2154
mkdir -p "$work/nodes/$id" || exit 1
turn=0
until mkdir "$work/nodes/$id/$turn" 2>/dev/null; do
  turn=$((turn + 1))
  if [ "$turn" -gt 9999 ]; then echo "polar: cannot make a folder in $work/nodes/$id" >&2; exit 1; fi
done
dir="$work/nodes/$id/$turn"
# Bash before 4.4 treats an empty array as unset.
adopt=()
for ((earlier = 0; earlier < turn; earlier += 1)); do adopt+=(--adopt "$work/nodes/$id/$earlier"); done

ending=''
node=''
# Slurm signals the end of the time limit only to this shell, and the end of the job to every process of it.
trap 'ending=time; if [ -n "$node" ]; then kill -TERM "$node"; fi' USR1
trap 'ending=cancelled' TERM INT

crashes=0
while :; do
  echo "polar: $(date -u +%FT%TZ) node $id starts on $(hostname), turn $turn"
  started=$SECONDS
  "${polar[@]}" node "${arguments[@]}" --id "$id" --dir "$dir" ${adopt[@]+"${adopt[@]}"} &
  node=$!
  if [ -n "$ending" ]; then kill -TERM "$node"; fi
  while :; do
    wait "$node"
    code=$?
    kill -0 "$node" 2>/dev/null || break
  done
  node=''
  echo "polar: $(date -u +%FT%TZ) node $id ended with $code"
  # Finished, cancelled, or wrong usage: a restart would change nothing.
  if [ "$code" -eq 0 ] || [ "$code" -eq 2 ] || [ -n "$ending" ] || [ -e "$work/stop-$SLURM_ARRAY_JOB_ID" ]; then break; fi
  # Slurm has already restarted this task on another machine.
  if [ -e "$work/nodes/$id/$((turn + 1))" ]; then break; fi
  if [ $((SECONDS - started)) -gt 600 ]; then crashes=0; fi
  crashes=$((crashes + 1))
  if [ "$crashes" -gt 3 ]; then break; fi
  sleep $((crashes * crashes)) &
  wait $!
done
if [ "$ending" = time ] && [ -n "$requeue" ] && [ ! -e "$work/stop-$SLURM_ARRAY_JOB_ID" ]; then
  # Not SLURM_JOB_ID, which for one task of an array is the number of the whole array. Slurm ends this process after it has
  # requeued the task.
  scontrol requeue "$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID" && exec sleep 60
fi
exit "$code"
