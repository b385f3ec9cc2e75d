/** A task of a job array, or a job without an array, as squeue reports it. */
export interface SlurmTask {
  /** Id of the array, or of the job. */
  jobId: string
  /** Index in the array; absent for a job without an array. */
  task?: number
  /** Slurm state, such as `PENDING`, `RUNNING`, `NODE_FAIL`. */
  state: string
  /** Empty unless the task runs. */
  machine: string
  /** In Slurm's format. */
  timeLeft: string
  /** Reason why the task waits or ended. */
  reason: string
}

/** Array job, task, state, machines, time left, and last the reason, which may contain any character. */
export const SQUEUE_FORMAT = '%F|%K|%T|%N|%L|%r'

export function parseJobs(text: string): SlurmTask[] {
  return text.split('\n').flatMap((line) => {
    const [jobId, task, state, machine = '', timeLeft = '', ...reason] = line.split('|')
    if (jobId === undefined || !/^\d+$/.test(jobId) || task === undefined || state === undefined) return []
    const row: SlurmTask = { jobId, state, machine, timeLeft, reason: reason.join('|').trim() }
    return /^\d+$/.test(task) ? [{ ...row, task: Number(task) }] : [row]
  })
}

const WAITING = new Set([
  'PENDING',
  'CONFIGURING',
  'REQUEUED',
  'REQUEUE_FED',
  'REQUEUE_HOLD',
  'SPECIAL_EXIT',
  'RESV_DEL_HOLD',
])
const RUNNING = new Set(['RUNNING', 'SUSPENDED', 'STOPPED', 'SIGNALING', 'STAGE_OUT', 'RESIZING', 'COMPLETING'])

/** Reduces Slurm's states to three phases. */
export function phaseOf(state: string | undefined): 'waiting' | 'running' | 'over' {
  if (state !== undefined && WAITING.has(state)) return 'waiting'
  return state !== undefined && RUNNING.has(state) ? 'running' : 'over'
}

/** Returns the name of a task that Slurm prints and scancel accepts. */
export function taskName({ jobId, task }: Pick<SlurmTask, 'jobId' | 'task'>): string {
  return task === undefined ? jobId : `${jobId}_${task}`
}
