import { runProgram } from '../../lib/process/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { parseJobs, SQUEUE_FORMAT, type SlurmTask } from './slurm-tasks.ts'

/** The programs of Slurm. Values are passed as arguments, never through a shell. */
export interface SlurmPrograms {
  /** Returns the id of the new job. */
  submit(scriptFile: string): Promise<string>
  /** Lists the tasks of these jobs. Slurm forgets jobs some minutes after their end. */
  list(jobIds: readonly string[]): Promise<SlurmTask[]>
  /** Cancels jobs, or tasks such as `12_3`. Ended jobs are ignored. */
  cancel(ids: readonly string[]): Promise<void>
}

/** Keeps the command line short. */
const IDS_PER_CALL = 500

export function createSlurmPrograms(env: NodeJS.ProcessEnv): SlurmPrograms {
  const call = async (...command: [string, ...string[]]): Promise<string> => {
    const { exitCode, stdout, stderr } = await runProgram(command, { env })
    if (exitCode === 0) return stdout
    const [program] = command
    if (exitCode === 127)
      throw new RolloutError(
        'config.invalid',
        `${program} cannot be started (${stderr.trim()}). Install the Slurm programs on this machine.`,
      )
    throw new SlurmError(program, exitCode, stderr.trim())
  }
  return {
    async submit(scriptFile) {
      const printed = await call('sbatch', '--parsable', scriptFile)
      // With several clusters, the name of the cluster follows the id.
      const id = /^(\d+)(?:;.*)?$/m.exec(printed)?.[1]
      if (id === undefined)
        throw new RolloutError('server.bad-answer', `sbatch printed "${printed.trim()}" instead of a job id.`)
      return id
    },
    async list(jobIds) {
      if (jobIds.length === 0) return []
      try {
        // Not --json, whose fields change from release to release.
        const options = ['--noheader', '--array', '--states=all', `--format=${SQUEUE_FORMAT}`]
        return parseJobs(await call('squeue', ...options, `--jobs=${jobIds.join(',')}`))
      } catch (error) {
        // squeue fails for a single job that it has forgotten.
        if (error instanceof SlurmError && /invalid job id/i.test(error.stderr)) return []
        throw error
      }
    },
    async cancel(ids) {
      for (let from = 0; from < ids.length; from += IDS_PER_CALL) {
        await call('scancel', '--quiet', ...ids.slice(from, from + IDS_PER_CALL))
      }
    },
  }
}

class SlurmError extends RolloutError {
  readonly stderr: string

  constructor(program: string, exitCode: number, stderr: string) {
    super('server.failed', `${program} failed (${exitCode}): ${stderr.slice(-1000)}`)
    this.stderr = stderr
  }
}
