import { loadProgram } from '../../../lib/process/load-program.ts'
import type { CommandResult, Workspace } from '../../../model/workspace.ts'

const openGit = loadProgram(new URL('./open-git.sh', import.meta.url))

export interface GitPlace {
  workspace: Workspace
  /** Where the repository is. */
  repo: string
  /** Where our git folder is; nothing is there yet when it is first used. */
  room: string
  base: string
}

export interface GitScript {
  /** Follows open-git.sh. */
  script: string
  args?: readonly string[]
  stdin?: string | Uint8Array
  outputBytes?: number
  timeoutMs?: number
}

/** Runs a script beside a repository, with the git folder of ours. */
export function runGit({ workspace, repo, room, base }: GitPlace, options: GitScript): Promise<CommandResult> {
  const { script, args = [], ...rest } = options
  return workspace.run({
    command: ['/bin/sh', '-c', `${openGit()}${script}`, 'sh', repo, room, base, ...args],
    ...rest,
  })
}

const FIND = `for place in "$@"; do if [ -e "$place/.git" ]; then printf %s "$place"; exit; fi; done
printf %s none`

/** The repository: as configured, else where SWE-bench has it, else where work begins. */
export async function findRepo(workspace: Workspace, configured: string | undefined): Promise<string> {
  if (configured !== undefined) return configured
  const command = ['/bin/sh', '-c', FIND, 'sh', '/testbed', workspace.workdir] as const
  const { stdout } = await workspace.run({ command, timeoutMs: 30_000 })
  const place = stdout.toString('utf8')
  return place === '/testbed' ? place : workspace.workdir
}
