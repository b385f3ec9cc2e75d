import { RolloutError } from '../../model/failure.ts'
import { shellWord } from '../../lib/process/shell-word.ts'

/** What every script of ours needs to know. */
interface ScriptPlan {
  /** Of the job, and what the ids of its nodes begin with. */
  name: string
  /** On storage that all machines share: scripts, logs, and what nodes keep. */
  workDir: string
  /** Options of sbatch that follow from the configuration; see `toOptions`. */
  options: readonly string[]
  /** As the operator wrote them, one option or more a line. */
  rawOptions: readonly string[]
  /** Shell commands of the operator's, before anything of ours. */
  setup: readonly string[]
  /** How Polar is started. */
  polar: readonly string[]
}

export interface NodeScriptPlan extends ScriptPlan {
  /** How many nodes. */
  tasks: number
  /** What `polar node` is called with, besides its id and its folder. */
  nodeArguments: readonly string[]
  requeue: boolean
}

export interface ServerScriptPlan extends ScriptPlan {
  /** What `polar server` is called with. */
  serverArguments: readonly string[]
}

/** How long before its time is up a job hears of it. */
export const DRAIN_SECONDS = 120

/**
 * A job array of nodes. Values are quoted wherever they stand; only `rawOptions` and `setup` are taken as they are. No
 * secret is in it: nodes read their token from a file.
 */
export function renderNodeScript(plan: NodeScriptPlan): string {
  const options = [
    `--job-name=${plan.name}`,
    `--array=0-${plan.tasks - 1}`,
    `--output=${inWorkDir(plan.workDir, 'logs/%A_%a.log')}`,
    // A job that starts again goes on in the same log.
    '--open-mode=append',
    plan.requeue ? '--requeue' : '--no-requeue',
    `--signal=B:USR1@${DRAIN_SECONDS}`,
    ...plan.options,
  ]
  return [
    ...head(plan, options),
    `work=${shellWord(plan.workDir)}`,
    `id=${shellWord(plan.name)}"-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"`,
    `requeue=${plan.requeue ? 'yes' : ''}`,
    words('polar', plan.polar),
    words('arguments', plan.nodeArguments),
    NODE_BODY,
  ].join('\n')
}

/** One job with the server. Says in a file where it listens. */
export function renderServerScript(plan: ServerScriptPlan): string {
  const options = [
    `--job-name=${plan.name}-server`,
    `--output=${inWorkDir(plan.workDir, 'logs/%j.log')}`,
    // Its database may be a folder that only the machine it was on can let go of.
    '--no-requeue',
    ...plan.options,
  ]
  return [
    ...head(plan, options),
    `work=${shellWord(plan.workDir)}`,
    words('polar', plan.polar),
    words('arguments', plan.serverArguments),
    SERVER_BODY,
  ].join('\n')
}

/** Where a server that runs as this job says how it is reached. */
export function serverAddressFile(workDir: string, jobId: string): string {
  return `${workDir}/server-${jobId}.url`
}

/** While this file is there, nodes of the job do not ask for another turn. */
export function stopFile(workDir: string, jobId: string): string {
  return `${workDir}/stop-${jobId}`
}

/**
 * Runs the node, and the node again if it crashes. Each start of the job has a folder of its own: when Slurm gives the
 * task to another machine, the process on the first one may still be alive, and write. What it finished and could not
 * deliver is found by the next, in the earlier folders.
 */
const NODE_BODY = String.raw`
mkdir -p "$work/nodes/$id" || exit 1
turn=0
until mkdir "$work/nodes/$id/$turn" 2>/dev/null; do
  turn=$((turn + 1))
  if [ "$turn" -gt 9999 ]; then echo "polar: cannot make a folder in $work/nodes/$id" >&2; exit 1; fi
done
dir="$work/nodes/$id/$turn"
# As bash before 4.4 needs it: an empty array counts as unset there.
adopt=()
for ((earlier = 0; earlier < turn; earlier += 1)); do adopt+=(--adopt "$work/nodes/$id/$earlier"); done

ending=''
node=''
# Only this shell hears that the time is up; when the job is ended, Slurm tells every process of it.
trap 'ending=time; if [ -n "$node" ]; then kill -TERM "$node"; fi' USR1
trap 'ending=told' TERM INT

crashes=0
while :; do
  echo "polar: $(date -u +%FT%TZ) node $id starts on $(hostname), turn $turn"
  started=$SECONDS
  "\${polar[@]}" node "\${arguments[@]}" --id "$id" --dir "$dir" \${adopt[@]+"\${adopt[@]}"} &
  node=$!
  if [ -n "$ending" ]; then kill -TERM "$node"; fi
  while :; do
    wait "$node"
    code=$?
    kill -0 "$node" 2>/dev/null || break
  done
  node=''
  echo "polar: $(date -u +%FT%TZ) node $id ended with $code"
  # Done, told to end, or called wrongly: once more would change nothing.
  if [ "$code" -eq 0 ] || [ "$code" -eq 2 ] || [ -n "$ending" ] || [ -e "$work/stop-$SLURM_ARRAY_JOB_ID" ]; then break; fi
  # This task runs elsewhere already, and we are what Slurm has lost sight of.
  if [ -e "$work/nodes/$id/$((turn + 1))" ]; then break; fi
  if [ $((SECONDS - started)) -gt 600 ]; then crashes=0; fi
  crashes=$((crashes + 1))
  if [ "$crashes" -gt 3 ]; then break; fi
  sleep $((crashes * crashes)) &
  wait $!
done
if [ "$ending" = time ] && [ -n "$requeue" ] && [ ! -e "$work/stop-$SLURM_ARRAY_JOB_ID" ]; then
  # Not SLURM_JOB_ID: of one task of an array that is the number of all. Slurm ends this process when it has taken note.
  scontrol requeue "$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID" && exec sleep 60
fi
exit "$code"
`.replaceAll('\\${', '${')

const SERVER_BODY = String.raw`
host=$(hostname -f 2>/dev/null || hostname)
server=''
trap 'if [ -n "$server" ]; then kill -TERM "$server"; fi' USR1 TERM INT
address="$work/server-$SLURM_JOB_ID.url"
ready() {
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ \"url\":\"(https?)://[^\"]*:([0-9]+)\" ]]; then
      printf '%s://%s:%s\n' "\${BASH_REMATCH[1]}" "$host" "\${BASH_REMATCH[2]}" > "$address.new"
      mv "$address.new" "$address"
    fi
  done
}
"\${polar[@]}" server "\${arguments[@]}" --json > >(ready) &
server=$!
while :; do
  wait "$server"
  code=$?
  kill -0 "$server" 2>/dev/null || break
done
rm -f "$address"
exit "$code"
`.replaceAll('\\${', '${')

function head({ rawOptions, setup }: ScriptPlan, options: readonly string[]): string[] {
  for (const line of [...rawOptions, ...setup]) assertOneLine(line)
  return [
    '#!/bin/bash',
    // The first ones are overruled by those that follow.
    ...rawOptions.map((line) => `#SBATCH ${line}`),
    ...options.map((option) => `#SBATCH ${sbatchWord(option)}`),
    '# Written by: polar cluster slurm up',
    ...setup,
    'set -u',
    'umask 077',
  ]
}

function words(name: string, values: readonly string[]): string {
  return `${name}=(${values.map((value) => shellWord(assertOneLine(value))).join(' ')})`
}

/** One word of an `#SBATCH` line, as sbatch reads them: a backslash takes the next character as it is, also in quotes. */
export function sbatchWord(text: string): string {
  return `"${assertOneLine(text).replaceAll(/["\\]/g, String.raw`\$&`)}"`
}

/** Slurm puts numbers where `%` stands in the name of a log, and stops doing so at a backslash. */
function inWorkDir(workDir: string, name: string): string {
  if (!/[%\\]/.test(workDir)) return `${workDir}/${name}`
  throw new RolloutError('config.invalid', `cluster.slurm.work_dir must have no % or backslash in it: ${workDir}`)
}

function assertOneLine(text: string): string {
  if (!/[\p{Cc}\p{Cs}\u2028\u2029]/u.test(text)) return text
  const shown = JSON.stringify(text)
  throw new RolloutError(
    'config.invalid',
    `A job script cannot have ${shown} in it: it must be one line of plain text.`,
  )
}
