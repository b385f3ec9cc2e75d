import { RolloutError } from '../../model/failure.ts'
import type { RunnableHarness } from './find-runnable.ts'
import type { LaunchPlan } from './harness-launch.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

const VERSION_MS = 60_000

/** Throws `harness.not-found` if the program in the sandbox does not have the version that the task requires. */
export async function assertVersion(
  sandbox: Pick<Sandbox, 'exec'>,
  { harness, version }: Pick<RunnableHarness, 'harness' | 'version'>,
  { env }: Pick<LaunchPlan, 'env'>,
): Promise<void> {
  if (version === undefined) return
  const execution = await sandbox.exec({
    command: [harness.command, '--version'],
    env,
    leftovers: 'end',
    timeoutMs: VERSION_MS,
    outputBytes: 4096,
  })
  let output = ''
  for await (const chunk of execution.output('stdout')) output += chunk.toString()
  const { exitCode } = await execution.result
  const found = exitCode === 0 ? /\d+\.\d+\.\d+(?:[-.][\w.]+)?/.exec(output)?.[0] : undefined
  if (found === version) return
  const what = found === undefined ? `has no working ${harness.command}` : `has ${found}`
  throw new RolloutError(
    'harness.not-found',
    `The task requires ${harness.title} ${version} in settings.version, but the sandbox ${what}. ` +
      `Install that version in runtime.prepare, or remove settings.version.`,
  )
}
