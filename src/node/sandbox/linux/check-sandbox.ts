import { randomUUID } from 'node:crypto'
import type { Runtime, SandboxSpec } from '../runtimes/runtime.ts'
import { identify } from './process/processes.ts'
import { START_MS } from './process/started.ts'

/** Returns the id of a sandbox that only tests whether sandboxes work. The id contains the pid of this process. */
export function checkId(): string {
  return `check-${process.pid}-${randomUUID()}`
}

/** Removes test sandboxes of dead processes. They belong to no session, so no other code removes them. */
export async function removeLeftChecks(runtime: Pick<Runtime, 'list' | 'remove'>): Promise<void> {
  for (const { id } of await runtime.list()) {
    const [, owner] = /^check-(\d+)-/.exec(id) ?? []
    if (owner !== undefined && (await identify(Number(owner))) === undefined) await runtime.remove(id)
  }
}

/** Starts a sandbox and runs `true` in it. Returns the reason of a failure. */
export async function trySandbox(
  runtime: Pick<Runtime, 'list' | 'remove' | 'start'>,
  { image, now }: { image?: string; now: number },
  signal: AbortSignal,
): Promise<string | undefined> {
  try {
    await removeLeftChecks(runtime)
    const spec: SandboxSpec = {
      id: checkId(),
      image,
      workdir: '/work',
      env: {},
      limits: {},
      network: { kind: 'none' },
      mounts: [],
      labels: {},
      leaseUntil: now + START_MS,
    }
    await using sandbox = await runtime.start(spec, signal)
    const execution = await sandbox.exec({ command: ['true'], leftovers: 'end', timeoutMs: START_MS })
    const { exitCode } = await execution.result
    return exitCode === 0 ? undefined : `a command in the sandbox exited with ${exitCode}`
  } catch (error) {
    signal.throwIfAborted()
    return error instanceof Error ? error.message : String(error)
  }
}
