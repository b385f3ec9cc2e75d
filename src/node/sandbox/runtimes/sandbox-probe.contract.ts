import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { ExecResult, ExecSpec, Sandbox, SandboxSpec } from './runtime.ts'

/** Limit for operations that take at most two seconds on an idle machine and would never end if they were broken. */
export const PROMPTLY_MS = 20_000

/** Result of a command, with its output. */
export interface Ran extends ExecResult {
  stdout: string
  stderr: string
}

let count = 0

/** Returns a plain spec with a unique id. */
export function toProbeSpec(name: string, more: Partial<SandboxSpec> = {}): SandboxSpec {
  return {
    id: `${name}-${process.pid}-${(count += 1)}`,
    workdir: '/workspace',
    env: {},
    limits: {},
    network: { kind: 'none' },
    mounts: [],
    labels: { suite: name },
    leaseUntil: Date.now() + 600_000,
    ...more,
  }
}

export function runScript(sandbox: Sandbox, script: string, more: Partial<ExecSpec> = {}): Promise<Ran> {
  return runCommand(sandbox, { command: ['bash', '-c', script], ...more })
}

export async function runCommand(sandbox: Sandbox, spec: Partial<ExecSpec> & Pick<ExecSpec, 'command'>): Promise<Ran> {
  const execution = await sandbox.exec({ leftovers: 'end', timeoutMs: 30_000, ...spec })
  const [stdout, stderr] = [await readText(execution.output('stdout')), await readText(execution.output('stderr'))]
  return { ...(await execution.result), stdout, stderr }
}

export async function readText(chunks: AsyncIterable<Buffer>): Promise<string> {
  const all: Buffer[] = []
  for await (const chunk of chunks) all.push(chunk)
  return Buffer.concat(all).toString()
}

/** Returns the pids of this machine's processes whose command line contains the word; zombies have no command line. */
export function processesWith(word: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return pid !== process.pid && readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(word)
      } catch {
        return false
      }
    })
}

/** The `orphanScript` of the contract, for a built-in runtime. */
export function toOrphanScript(config: { kind: string }, more: Partial<SandboxSpec> = {}): string {
  const index = fileURLToPath(new URL('./index.ts', import.meta.url))
  const { id: _, ...spec } = toProbeSpec('orphan', { leaseUntil: 0, ...more })
  return `
const [script, dir, id] = process.argv.slice(1)
const { runtimes } = await import(${JSON.stringify(index)})
const runtime = runtimes.create(runtimes.config.parse(${JSON.stringify(config)}), { dir, now: Date.now })
const sandbox = await runtime.start({ id, ...${JSON.stringify(spec)} }, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'keep' })
for await (const _ of execution.output('stdout')) console.log('up')
`
}
