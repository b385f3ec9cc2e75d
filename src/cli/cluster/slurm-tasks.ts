/** One task of an array, or a job that is none, as Slurm sees it. */
export interface SlurmTask {
  /** Of the array, or of the job itself. */
  jobId: string
  /** Absent for a job that is no array. */
  task?: number
  /** Slurm's word, such as `PENDING`, `RUNNING`, `NODE_FAIL`. */
  state: string
  /** Where it runs; empty while it runs nowhere. */
  machine: string
  /** Until its time is up, as Slurm writes it. */
  timeLeft: string
  /** Why it waits, or ended. */
  reason: string
}

/** Array job, task, state, machines, time left, and what may have anything in it at the end. */
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

/** What is left of Slurm's many words for whoever asks whether there will be a node. */
export function phaseOf(state: string | undefined): 'waiting' | 'running' | 'over' {
  if (state !== undefined && WAITING.has(state)) return 'waiting'
  return state !== undefined && RUNNING.has(state) ? 'running' : 'over'
}

/** As Slurm names it, and as scancel takes it. */
export function taskName({ jobId, task }: Pick<SlurmTask, 'jobId' | 'task'>): string {
  return task === undefined ? jobId : `${jobId}_${task}`
}
