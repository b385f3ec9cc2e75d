import type { LaunchPlan } from './harness-launch.ts'
import type { Execution, Sandbox } from './runtimes/runtime.ts'

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
  await makeFolders(sandbox, plan.folders)
  for (const [path, text] of Object.entries(plan.files)) await sandbox.writeFile(path, text, { mode: 0o600 })
  for (const { source, target } of plan.copies) await sandbox.upload(source, target, signal)
  signal.throwIfAborted()
  return sandbox.exec({
    command: plan.command,
    cwd: plan.cwd,
    env: plan.env,
    stdin: plan.stdin,
    // Whatever an agent leaves behind ends with it: nothing of it may be there while it is graded.
    leftovers: 'end',
    ...limits,
  })
}

async function makeFolders(sandbox: Sandbox, folders: readonly string[]): Promise<void> {
  if (folders.length === 0) return
  const execution = await sandbox.exec({ command: ['mkdir', '-p', '-m', '700', ...folders], leftovers: 'end' })
  await execution.result
}
