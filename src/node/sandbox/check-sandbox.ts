import { randomUUID } from 'node:crypto'
import type { Runtime } from '../runtimes/runtime.ts'
import { identify } from './processes.ts'

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
