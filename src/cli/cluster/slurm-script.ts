import { loadProgram } from '../../lib/process/load-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { shellWord } from '../../lib/process/shell-word.ts'

/** What every script of ours needs to know. */
interface ScriptPlan {
  /** Name of the job, and prefix of the ids of its nodes. */
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
    '',
    nodeBody(),
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
    '',
    serverBody(),
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

const nodeBody = loadProgram(new URL('./slurm-node.sh', import.meta.url))
const serverBody = loadProgram(new URL('./slurm-server.sh', import.meta.url))

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
