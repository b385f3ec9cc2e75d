import { loadProgram } from '../../../lib/process/load-program.ts'
import type { CommandResult, Workspace } from '../../../model/workspace.ts'

const openGit = loadProgram(new URL('./open-git.sh', import.meta.url))

export interface GitTarget {
  workspace: Workspace
  /** Path of the repository. */
  repo: string
  /** Folder of the separate git folder. Must not exist before the first script. */
  scratch: string
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

/** Runs a script in a repository with the separate git folder. */
export function runGitInSandbox(
  { workspace, repo, scratch, base }: GitTarget,
  options: GitScript,
): Promise<CommandResult> {
  const { script, args = [], ...rest } = options
  return workspace.run({
    command: ['/bin/sh', '-c', `${openGit()}${script}`, 'sh', repo, scratch, base, ...args],
    ...rest,
  })
}

const FIND = `for place in "$@"; do if [ -e "$place/.git" ]; then printf %s "$place"; exit; fi; done
printf %s none`

/** Returns the path of the repository: the configured one, else SWE-bench's, else the workdir. */
export async function findRepo(workspace: Workspace, configured: string | undefined): Promise<string> {
  if (configured !== undefined) return configured
  const command = ['/bin/sh', '-c', FIND, 'sh', '/testbed', workspace.workdir] as const
  const { stdout } = await workspace.run({ command, timeoutMs: 30_000 })
  const place = stdout.toString('utf8')
  return place === '/testbed' ? place : workspace.workdir
}
