import { RolloutError } from '../../../../model/failure.ts'
import { BaseSandbox, type SandboxParts } from '../../linux/base-sandbox.ts'
import type { CompleteExecSpec } from '../../linux/process/render-exec.ts'
import type { SandboxRecord } from '../../linux/records.ts'
import type { Execution, SandboxStats } from '../runtime.ts'
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

export interface KubernetesSandboxParts extends SandboxParts {
  cluster: Cluster
  target: ContainerTarget
  closeSockets(): Promise<void>
  /** Removes the pod and everything that belongs to it. */
  remove(): Promise<void>
}

export class KubernetesSandbox extends BaseSandbox<KubernetesSandboxParts> {
  protected readonly files = new PodFiles((command) => startHelper(this.parts.cluster, this.parts.target, command))
  readonly #processes = new PodProcesses()
  readonly #running = new Set<Execution>()

  protected async startCommand(spec: CompleteExecSpec, at: { id: string; folder: string }): Promise<Execution> {
    const execution = await startInPod(spec, {
      ...this.parts,
      ...at,
      processes: this.#processes,
      isStopping: () => this.isStopping,
      abandon: () => this.#abandon(),
      ranOutOfMemory: () => this.#ranOutOfMemory(),
    })
    this.#running.add(execution)
    void execution.result.finally(() => this.#running.delete(execution))
    return execution
  }

  /** Reads the pod's own control group, if the image permits it. */
  protected async measure(): Promise<SandboxStats> {
    const { exitCode, stdout, stderr } = await this.#tool(['/bin/sh', '-c', statsScript(), 'sh', this.workdir])
    if (exitCode === 255) throw new ClusterError(500, stderr)
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

  protected override async publish(record: SandboxRecord): Promise<void> {
    const { cluster, target } = this.parts
    const json = { metadata: { annotations: { [RECORD]: toRecord(record) } } }
    await cluster.call('PATCH', podPath(target.namespace, target.pod), { json, type: 'application/merge-patch+json' })
  }

  protected async storeSnapshot(): Promise<void> {
    throw new RolloutError('runtime.unsupported', 'Pods do not support snapshots')
  }

  protected async endProcesses(): Promise<void> {
    await this.parts.closeSockets()
    await Promise.all([...this.#running].map((execution) => execution.kill()))
    const { exitCode, stderr } = await this.#tool(sweepTool('kill', this.#processes.waiters, []))
    if (exitCode !== 0)
      throw new RolloutError('runtime.gone', `Cannot end the processes of sandbox ${this.id}: ${stderr.slice(-500)}`)
  }

  /** The pod's object disappears before its processes, which only its machine ends; so they are killed first. */
  protected async close(): Promise<void> {
    await this.parts.closeSockets()
    const { cluster, target } = this.parts
    const sweep = sweepTool('kill', this.#processes.waiters, [])
    await runTool(cluster, target, sweep, { signal: AbortSignal.timeout(SWEEP_MS) }).catch(() => {})
    await this.parts.remove()
  }

  protected override isEngineError(error: unknown): boolean {
    return error instanceof ClusterError
  }

  async #abandon(): Promise<void> {
    const { cluster, target } = this.parts
    const query = { gracePeriodSeconds: '0' }
    await cluster.call('DELETE', podPath(target.namespace, target.pod), { query }).catch(() => {})
  }

  async #ranOutOfMemory(): Promise<boolean> {
    const { cluster, target } = this.parts
    try {
      const pod = Pod.parse(await cluster.call('GET', podPath(target.namespace, target.pod)))
      return ranOutOfMemory(pod, target.container)
    } catch {
      return false
    }
  }

  #tool(command: readonly string[]): ReturnType<typeof runTool> {
    const { cluster, target } = this.parts
    const running = runTool(cluster, target, command, { signal: AbortSignal.timeout(TOOL_TIMEOUT_MS) })
    return running.catch((error: unknown) => this.throwGone(error))
  }
}
