import { access } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { onAbort } from '../../../lib/async/until-aborted.ts'
import { describeError } from '../../../lib/fs/errno.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { PrepareAction } from '../../../model/task.ts'
import type { Checkouts } from './checkouts.ts'
import { readOutputEnd } from '../../session/output-end.ts'
import type { Sandbox } from '../runtimes/runtime.ts'

type ExecAction = Extract<PrepareAction, { type: 'exec' }>

/** Longest wait between two attempts. */
const LONGEST_BACKOFF_MS = 5000

export interface PrepareOptions {
  /** Environment of every command; variables of a step take precedence. */
  env?: Readonly<Record<string, string>>
}

export interface PrepareDeps {
  /** Uploads repositories; absent: checkout steps are rejected. */
  checkouts?: Pick<Checkouts, 'upload'>
}

/** Runs the prepare steps in order. Throws `runtime.prepare-failed` with the output of the failed step. */
export async function prepareSandbox(
  sandbox: Sandbox,
  actions: readonly PrepareAction[],
  signal: AbortSignal,
  { checkouts, env = {} }: PrepareDeps & PrepareOptions = {},
): Promise<void> {
  for (const [index, action] of actions.entries()) {
    signal.throwIfAborted()
    switch (action.type) {
      case 'upload_file':
      case 'upload_dir':
        await sandbox.upload(action.source, action.target, signal).catch(async (error: unknown) => {
          await assertSource(action, index)
          throw error
        })
        break
      case 'checkout':
        if (checkouts === undefined)
          throw new RolloutError('config.invalid', `Prepare step ${index + 1}: checkouts are not available here.`)
        await checkouts.upload(action, sandbox, signal)
        break
      case 'exec':
        await execWithRetries(sandbox, { ...action, env: { ...env, ...action.env } }, index, signal)
        break
    }
  }
}

async function assertSource({ source }: { source: string }, index: number): Promise<void> {
  await access(source).catch((cause: unknown) => {
    const message = `Prepare step ${index + 1}: ${source} cannot be uploaded: ${describeError(cause)}`
    throw new RolloutError('config.invalid', message, { cause })
  })
}

async function execWithRetries(
  sandbox: Sandbox,
  action: ExecAction,
  index: number,
  signal: AbortSignal,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const failed = await execOnce(sandbox, action, signal)
    if (failed === undefined) return
    if (attempt >= action.max_attempts) {
      const often = attempt === 1 ? '' : ` after ${attempt} attempts`
      throw new RolloutError('runtime.prepare-failed', `Prepare step ${index + 1}${often}: ${failed}`)
    }
    const backoff = Math.min(action.retry_backoff_seconds * 1000 * 2 ** (attempt - 1), LONGEST_BACKOFF_MS)
    await sleep(backoff, undefined, { signal })
  }
}

/** Returns the reason of a failure. */
async function execOnce(sandbox: Sandbox, action: ExecAction, signal: AbortSignal): Promise<string | undefined> {
  const execution = await sandbox.exec({
    command: ['/bin/sh', '-c', action.command],
    cwd: action.cwd ?? undefined,
    env: action.env ?? undefined,
    // A server that a step starts serves the harness.
    leftovers: 'keep',
  })
  using _ = onAbort(signal, () => void execution.kill())
  const { exitCode, signal: by } = await execution.result
  signal.throwIfAborted()
  if (exitCode === 0) return undefined
  const how = exitCode === null ? `was ended by ${by}` : `exited with ${exitCode}`
  return `${JSON.stringify(action.command)} ${how}: ${(await readOutputEnd(execution)) || 'no output'}`
}
