import { randomUUID } from 'node:crypto'
import type { Runtime, SandboxSpec } from '../runtimes/runtime.ts'
import { identify } from './process/processes.ts'
import { START_MS } from './process/started.ts'

/** For a sandbox that only shows whether one can be made; it names the process that made it. */
export function checkId(): string {
  return `check-${process.pid}-${randomUUID()}`
}

/** Those of processes that were killed meanwhile: they belong to no session, so nobody else removes them. */
export async function removeLeftChecks(runtime: Pick<Runtime, 'list' | 'remove'>): Promise<void> {
  for (const { id } of await runtime.list()) {
    const [, owner] = /^check-(\d+)-/.exec(id) ?? []
    if (owner !== undefined && (await identify(Number(owner))) === undefined) await runtime.remove(id)
  }
}

/** Makes a sandbox and runs a command that does nothing; what went wrong with it. */
export async function trySandbox(
  runtime: Pick<Runtime, 'list' | 'remove' | 'start'>,
  { image, now }: { image?: string; now: number },
  signal: AbortSignal,
): Promise<string | undefined> {
  try {
    await removeLeftChecks(runtime)
    const spec: SandboxSpec = {
      id: checkId(),
      ...(image !== undefined && { image }),
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
    return exitCode === 0 ? undefined : `a command in it ended with ${exitCode}`
  } catch (error) {
    signal.throwIfAborted()
    return error instanceof Error ? error.message : String(error)
  }
}
