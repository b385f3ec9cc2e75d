import { mkdir } from 'node:fs/promises'
import { isAbsolute, join, normalize } from 'node:path/posix'
import { RolloutError } from '../../../../model/failure.ts'
import type { Records, SandboxRecord } from '../../linux/records.ts'
import type { CopyLimits, Execution, ExecSpec, Sandbox, SandboxStats } from '../runtime.ts'
import { ClusterError, type Cluster } from './cluster.ts'
import { runTool, startHelper, type ContainerTarget } from './exec.ts'
import { startInPod, sweepTool } from './execution.ts'
import { PodFiles } from './files.ts'
import { RECORD, toRecord } from './manifest.ts'
import { Pod, podPath, ranOutOfMemory } from './pods.ts'
import { PodProcesses } from './pod-processes.ts'
import { statsScript } from './scripts.ts'

const TOOL_TIMEOUT_MS = 60_000
/** Longest time that a stop waits for processes to be killed from inside; the pod is removed in any case. */
const SWEEP_MS = 1000

export interface KubernetesSandboxParts {
  cluster: Cluster
  target: ContainerTarget
  record: SandboxRecord
  records: Records
  folder: string
  workdir: string
  /** Environment of all commands. */
  env: Readonly<Record<string, string>>
  socketPort: number | undefined
  closeSockets(): Promise<void>
  /** Removes the pod and everything that belongs to it. */
  remove(): Promise<void>
  now(): number
}

export class KubernetesSandbox implements Sandbox {
  readonly #parts: KubernetesSandboxParts
  readonly #files: PodFiles
  readonly #processes = new PodProcesses()
  readonly #running = new Set<Execution>()
  #execs = 0
  #freezing: Promise<void> | undefined
  #stopping: Promise<void> | undefined

  constructor(parts: KubernetesSandboxParts) {
    this.#parts = parts
    const { cluster, target } = parts
    this.#files = new PodFiles((command) => startHelper(cluster, target, command))
  }

  get id(): string {
    return this.#parts.record.id
  }

  get workdir(): string {
    return this.#parts.workdir
  }

  get socketPort(): number | undefined {
    return this.#parts.socketPort
  }

  async exec(spec: ExecSpec): Promise<Execution> {
    this.#assertAlive()
    if (this.#freezing !== undefined)
      throw new RolloutError('runtime.gone', `Sandbox ${this.id} is frozen and runs no commands`)
    const { cluster, target, env } = this.#parts
    const folder = join(this.#parts.folder, 'exec')
    await mkdir(folder, { recursive: true, mode: 0o700 })
    const id = `x${(this.#execs += 1)}`
    try {
      const execution = await startInPod(
        { ...spec, cwd: this.#path(spec.cwd ?? '.'), env: { ...env, ...spec.env } },
        {
          cluster,
          target,
          processes: this.#processes,
          id,
          folder,
          isStopping: () => this.#stopping !== undefined,
          abandon: () => this.#abandon(),
          ranOutOfMemory: () => this.#ranOutOfMemory(),
          now: () => this.#parts.now(),
        },
      )
      this.#running.add(execution)
      void execution.result.finally(() => this.#running.delete(execution))
      return execution
    } catch (error) {
      this.#assertAlive()
      throw this.#toGone(error)
    }
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await this.#files.upload(source, this.#path(target), signal)
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await this.#files.download(this.#path(source), target, limits, signal)
  }

  async writeFile(path: string, data: string | Uint8Array, options: { mode?: number } = {}): Promise<void> {
    this.#assertAlive()
    await this.#files.writeFile(this.#path(path), data, options.mode ?? 0o644, this.#parts.now() / 1000)
  }

  async readFile(path: string, options: { maxBytes: number }): Promise<Buffer> {
    this.#assertAlive()
    return this.#files.readFile(this.#path(path), options.maxBytes)
  }

  /** Reads the pod's own control group, if the image permits it. */
  async stats(): Promise<SandboxStats> {
    this.#assertAlive()
    const { exitCode, stdout, stderr } = await this.#tool(['/bin/sh', '-c', statsScript(), 'sh', this.workdir])
    if (exitCode === 255) throw this.#toGone(new ClusterError(500, stderr))
    const values = new Map(stdout.split('\n').map((line) => line.split(' ') as [string, string]))
    const number = (key: string) => (values.has(key) ? Number(values.get(key)) : undefined)
    const [cpuUs, memoryBytes, processes, diskKb] = ['cpu', 'memory', 'processes', 'disk'].map(number)
    return {
      cpuMs: cpuUs === undefined ? undefined : cpuUs / 1000,
      memoryBytes,
      processes,
      diskBytes: diskKb === undefined ? undefined : diskKb * 1024,
    }
  }

  async renew(leaseUntil: number): Promise<void> {
    this.#assertAlive()
    const { cluster, target, record, records } = this.#parts
    record.leaseUntil = leaseUntil
    const json = { metadata: { annotations: { [RECORD]: toRecord(record) } } }
    try {
      const type = 'application/merge-patch+json'
      await cluster.call('PATCH', podPath(target.namespace, target.pod), { json, type })
    } catch (error) {
      throw this.#toGone(error)
    }
    await records.write(record)
  }

  snapshot(): Promise<void> {
    return Promise.reject(new RolloutError('runtime.unsupported', 'Pods do not support snapshots'))
  }

  freeze(): Promise<void> {
    this.#assertAlive()
    this.#freezing ??= this.#freeze()
    return this.#freezing
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #freeze(): Promise<void> {
    await this.#parts.closeSockets()
    await Promise.all([...this.#running].map((execution) => execution.kill()))
    const { exitCode, stderr } = await this.#tool(sweepTool('kill', this.#processes.waiters, []))
    if (exitCode !== 0)
      throw new RolloutError('runtime.gone', `Cannot end the processes of sandbox ${this.id}: ${stderr.slice(-500)}`)
  }

  /** The pod's object disappears before its processes, which only its machine ends; so they are killed first. */
  async #stop(): Promise<void> {
    await this.#parts.closeSockets()
    const { cluster, target } = this.#parts
    const sweep = sweepTool('kill', this.#processes.waiters, [])
    await runTool(cluster, target, sweep, { signal: AbortSignal.timeout(SWEEP_MS) }).catch(() => {})
    await this.#parts.remove()
  }

  async #abandon(): Promise<void> {
    const { cluster, target } = this.#parts
    const query = { gracePeriodSeconds: '0' }
    await cluster.call('DELETE', podPath(target.namespace, target.pod), { query }).catch(() => {})
  }

  async #ranOutOfMemory(): Promise<boolean> {
    const { cluster, target } = this.#parts
    try {
      const pod = Pod.parse(await cluster.call('GET', podPath(target.namespace, target.pod)))
      return ranOutOfMemory(pod, target.container)
    } catch {
      return false
    }
  }

  async #tool(command: readonly string[]): ReturnType<typeof runTool> {
    const { cluster, target } = this.#parts
    return runTool(cluster, target, command, { signal: AbortSignal.timeout(TOOL_TIMEOUT_MS) }).catch(
      (error: unknown) => {
        throw this.#toGone(error)
      },
    )
  }

  #path(path: string): string {
    return isAbsolute(path) ? normalize(path) : join(this.#parts.workdir, path)
  }

  #assertAlive(): void {
    if (this.#stopping !== undefined) throw new RolloutError('runtime.gone', `Sandbox ${this.id} was stopped`)
  }

  #toGone(error: unknown): unknown {
    if (!(error instanceof ClusterError)) return error
    return new RolloutError('runtime.gone', `Sandbox ${this.id} no longer responds: ${error.message}`, {
      cause: error,
    })
  }
}
