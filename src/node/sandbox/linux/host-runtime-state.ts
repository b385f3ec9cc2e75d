import { statfs } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { RuntimeDeps, Sandbox, SandboxLimits, SandboxSpec } from '../runtimes/runtime.ts'
import { type Cgroup, Cgroups } from './limits/cgroups.ts'
import { createCleanSpawn } from './process/clean-spawn.ts'
import { type SandboxProcess, HostedSandbox } from './hosted-sandbox.ts'
import { MemoryWatch, type WatchedMemory } from './limits/memory-watch.ts'
import { Pipes } from './process/pipes.ts'
import { Records, type SandboxRecord } from './records.ts'
import { type SnapshotLimits, Snapshots } from './files/snapshots.ts'
import { type RemoteSpawn, Spawner } from './process/spawner.ts'
import { trackSpawns } from './process/track-spawns.ts'
import type { SandboxUser } from './limits/sandbox-users.ts'
import { divideLimits, readUserLimits, type UserLimits } from './limits/user-quotas.ts'

/** How long a stop waits for the disk; what takes longer goes on without it. */
const REMOVE_MS = 1500
const USUAL_SANDBOXES = 8

/** What a runtime needs whose sandboxes are processes of this machine: where they are written down, and what they share. */
export class HostRuntimeState implements AsyncDisposable {
  /** Undefined where none can be made. */
  readonly cgroups = Cgroups.detect()
  readonly records: Records
  readonly snapshots: Snapshots
  readonly pipes: Pipes
  readonly spawn = createCleanSpawn()
  readonly spawner = new Spawner()
  /** The part of its user's limits that one of several sandboxes may use. */
  readonly #quotas: UserLimits
  readonly #watch = new MemoryWatch()
  readonly #now: () => number
  readonly #removing = new Set<Promise<void>>()

  constructor(deps: RuntimeDeps, limits: SnapshotLimits) {
    this.#now = () => deps.now()
    this.#quotas = divideLimits(readUserLimits(), deps.sandboxes ?? USUAL_SANDBOXES)
    this.records = new Records(deps.dir)
    this.pipes = new Pipes(deps.dir)
    const inUse = () => this.records.snapshotsInUse()
    this.snapshots = new Snapshots(deps.dir, limits, { now: this.#now, inUse })
  }

  /** For operators. */
  get limitsNote(): string {
    const { cgroups } = this
    if (cgroups === undefined)
      return 'no control groups can be made here: memory is limited by a watch of this process, which kills after the fact; processes are counted by user namespace; cpu is not limited'
    const memory = cgroups.limits.includes('memoryMb') ? '' : '; memory by a watch of this process'
    return `limits by control groups ${cgroups.version}: ${cgroups.limits.join(', ')}${memory}`
  }

  /** Which limits hold for the processes of every sandbox here. */
  get limits(): (keyof SandboxLimits)[] {
    return [...new Set([...(this.cgroups?.limits ?? []), 'memoryMb'] as const)]
  }

  /**
   * How a sandbox starts what runs in it. Without a control group for memory, what it starts is measured and watched. `storage` is a
   * path in its file system that is kept in memory.
   */
  guardMemory(
    { limits: { memoryMb } }: SandboxSpec,
    cgroup: Cgroup | undefined,
    storage?: string,
  ): { spawn: RemoteSpawn; memory: WatchedMemory | undefined } {
    if (cgroup?.folders.memory !== undefined) return { spawn: this.spawner.spawn, memory: undefined }
    const tracked = trackSpawns(this.spawner.spawn)
    const storedBytes = async (): Promise<number> => {
      const stats = storage === undefined ? undefined : await statfs(storage).catch(() => undefined)
      return stats === undefined ? 0 : (stats.blocks - stats.bfree) * stats.bsize
    }
    const limitBytes = memoryMb === undefined ? undefined : memoryMb * 1024 * 1024
    const memory = this.#watch.add({ limitBytes, roots: () => tracked.pids(), storedBytes })
    return { spawn: tracked.spawn, memory }
  }

  /** Most processes of a sandbox's user namespace; undefined where a control group counts them, or nothing does. */
  maxProcesses({ limits: { pids } }: SandboxSpec, cgroup: Cgroup | undefined): number | undefined {
    if (pids === undefined || cgroup?.folders.pids !== undefined) return undefined
    return Math.min(pids, this.#quotas.processes ?? pids)
  }

  /** Nothing for a sandbox with a user of its own. Undefined is our own user. */
  quotasOf(user: SandboxUser | undefined): UserLimits {
    return user !== undefined && user.uid !== user.shared ? {} : this.#quotas
  }

  /** Undefined where limits cannot be kept so. */
  async createCgroup({ id, limits }: SandboxSpec, record: SandboxRecord): Promise<Cgroup | undefined> {
    return this.cgroups?.create(`polar-${id}`, limits, async (folders) => {
      record.cgroup = folders
      await this.records.write(record)
    })
  }

  openSandbox(sandboxProcess: SandboxProcess): Sandbox {
    return new HostedSandbox(sandboxProcess, { records: this.records, spawn: this.spawn, now: this.#now })
  }

  /** Takes away the files of one that has ended. */
  async discard(id: string): Promise<void> {
    const removing = this.records.remove(id).finally(() => this.#removing.delete(removing))
    this.#removing.add(removing)
    await Promise.race([removing, sleep(REMOVE_MS, undefined, { ref: false })])
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#removing)
    await this.snapshots[Symbol.asyncDispose]()
    await this.pipes[Symbol.asyncDispose]()
    await this.spawner[Symbol.asyncDispose]()
  }
}
