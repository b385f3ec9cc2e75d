import type { LaunchPlan } from './harness-launch.ts'
import type { Execution, Sandbox } from '../sandbox/runtimes/runtime.ts'

export interface LaunchLimits {
  timeoutMs?: number
  /** Size limit of each of stdout and stderr. */
  outputBytes?: number
}

/** Copies the files of a launch plan into the sandbox, then starts the harness. */
export async function launchInSandbox(
  sandbox: Sandbox,
  plan: LaunchPlan,
  limits: LaunchLimits,
  signal: AbortSignal,
): Promise<Execution> {
  for (const [path, text] of Object.entries(plan.files)) await sandbox.writeFile(path, text, { mode: 0o600 })
  for (const { source, target } of plan.copies) await sandbox.upload(source, target, signal)
  signal.throwIfAborted()
  return sandbox.exec({
    command: withFolders(plan),
    cwd: plan.cwd,
    env: plan.env,
    stdin: plan.stdin,
    // Ends all processes of the agent with the harness: none may run while the session is graded.
    leftovers: 'end',
    ...limits,
  })
}

/** Creates the folders in the same command: a separate command would double the start time. */
function withFolders({ folders, command }: LaunchPlan): readonly [string, ...string[]] {
  if (folders.length === 0) return command
  const script = 'n=$1; shift; while [ "$n" -gt 0 ]; do mkdir -p -m 700 -- "$1"; shift; n=$((n-1)); done; exec "$@"'
  return ['/bin/sh', '-c', script, 'sh', String(folders.length), ...folders, ...command]
}
