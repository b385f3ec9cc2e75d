import { runProgram } from '../../lib/process/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { parseJobs, SQUEUE_FORMAT, type SlurmTask } from './slurm-tasks.ts'

/** Slurm's own programs. Everything goes to them as arguments, never through a shell. */
export interface SlurmPrograms {
  /** The id of the job that was made. */
  submit(scriptFile: string): Promise<string>
  /** Of these jobs, what Slurm still knows: it forgets those that ended some minutes ago. */
  list(jobIds: readonly string[]): Promise<SlurmTask[]>
  /** Jobs, or tasks of one as `12_3`. Those that ended already are none of its business. */
  cancel(ids: readonly string[]): Promise<void>
}

/** So many ids fit in one call, whatever the limit on arguments is. */
const IDS_AT_A_TIME = 500

export function createSlurmPrograms(env: NodeJS.ProcessEnv): SlurmPrograms {
  const call = async (...command: [string, ...string[]]): Promise<string> => {
    const { exitCode, stdout, stderr } = await runProgram(command, { env })
    if (exitCode === 0) return stdout
    const [program] = command
    if (exitCode === 127)
      throw new RolloutError(
        'config.invalid',
        `${program} cannot be started (${stderr.trim()}); is Slurm on this machine?`,
      )
    throw new SlurmError(program, exitCode, stderr.trim())
  }
  return {
    async submit(scriptFile) {
      const printed = await call('sbatch', '--parsable', scriptFile)
      // With several clusters the name of one follows.
      const id = /^(\d+)(?:;.*)?$/m.exec(printed)?.[1]
      if (id === undefined)
        throw new RolloutError(
          'server.bad-answer',
          `sbatch said "${printed.trim()}" where the number of a job was due.`,
        )
      return id
    },
    async list(jobIds) {
      if (jobIds.length === 0) return []
      try {
        // Not --json: what is in it changes from release to release.
        const options = ['--noheader', '--array', '--states=all', `--format=${SQUEUE_FORMAT}`]
        return parseJobs(await call('squeue', ...options, `--jobs=${jobIds.join(',')}`))
      } catch (error) {
        // Said when there is only one, and that one is forgotten.
        if (error instanceof SlurmError && /invalid job id/i.test(error.said)) return []
        throw error
      }
    },
    async cancel(ids) {
      for (let from = 0; from < ids.length; from += IDS_AT_A_TIME) {
        await call('scancel', '--quiet', ...ids.slice(from, from + IDS_AT_A_TIME))
      }
    },
  }
}

class SlurmError extends RolloutError {
  readonly said: string

  constructor(program: string, exitCode: number, said: string) {
    super('server.failed', `${program} failed (${exitCode}): ${said.slice(-1000)}`)
    this.said = said
  }
}
