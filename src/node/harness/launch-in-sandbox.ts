import type { LaunchPlan } from './harness-launch.ts'
import type { Execution, Sandbox } from '../sandbox/runtimes/runtime.ts'

export interface LaunchLimits {
  timeoutMs?: number
  /** Of each of stdout and stderr. */
  outputBytes?: number
}

/** Carries a plan out where the harness is to run: what it needs is put in its place, then it is started. */
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
    // Whatever an agent leaves behind ends with it: nothing of it may be there while it is graded.
    leftovers: 'end',
    ...limits,
  })
}

/** The folders are made on the way: a command of its own would take as long again as starting the harness. */
function withFolders({ folders, command }: LaunchPlan): readonly [string, ...string[]] {
  if (folders.length === 0) return command
  const script = 'n=$1; shift; while [ "$n" -gt 0 ]; do mkdir -p -m 700 -- "$1"; shift; n=$((n-1)); done; exec "$@"'
  return ['/bin/sh', '-c', script, 'sh', String(folders.length), ...folders, ...command]
}
