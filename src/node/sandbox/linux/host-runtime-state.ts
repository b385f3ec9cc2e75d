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

/** Longest time that a stop waits for the removal of files; the removal then continues in the background. */
const REMOVE_MS = 1500
const DEFAULT_SANDBOXES = 8

/**
 * State of a runtime whose sandboxes are processes of this machine: records, snapshots, limits, and the processes that
 * start others.
 */
export class HostRuntimeState implements AsyncDisposable {
  /** Undefined if this process cannot create control groups. */
  readonly cgroups = Cgroups.detect()
  readonly records: Records
  readonly snapshots: Snapshots
  readonly pipes: Pipes
  readonly spawn = createCleanSpawn()
  readonly spawner = new Spawner()
  /** The share of its user's limits that one sandbox may use. */
  readonly #quotas: UserLimits
  readonly #watch = new MemoryWatch()
  readonly #now: () => number
  readonly #removing = new Set<Promise<void>>()

  constructor(deps: RuntimeDeps, limits: SnapshotLimits) {
    this.#now = () => deps.now()
    this.#quotas = divideLimits(readUserLimits(), deps.sandboxes ?? DEFAULT_SANDBOXES)
    this.records = new Records(deps.dir)
    this.pipes = new Pipes(deps.dir)
    const inUse = () => this.records.snapshotsInUse()
    this.snapshots = new Snapshots(deps.dir, limits, { now: this.#now, inUse })
  }

  /** Note for operators about how limits are enforced. */
  get limitsNote(): string {
    const { cgroups } = this
    if (cgroups === undefined)
      return 'control groups are not available: this process measures memory and kills processes over the limit with a delay; processes are counted per user namespace; cpu is not limited'
    const memory = cgroups.limits.includes('memoryMb') ? '' : '; memory is measured and limited by this process'
    return `limits by control groups ${cgroups.version}: ${cgroups.limits.join(', ')}${memory}`
  }

  /** The limits that are enforced for every sandbox. */
  get limits(): (keyof SandboxLimits)[] {
    return [...new Set([...(this.cgroups?.limits ?? []), 'memoryMb'] as const)]
  }

  /**
   * Returns the function that starts processes of a sandbox. Without a memory control group, the memory of these
   * processes is measured and limited by this process. `storage` is a path in a file system of the sandbox that is kept
   * in memory.
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

  /**
   * Limit of processes of the sandbox's user namespace; undefined if a control group counts them or there is no limit.
   */
  maxProcesses({ limits: { pids } }: SandboxSpec, cgroup: Cgroup | undefined): number | undefined {
    if (pids === undefined || cgroup?.folders.pids !== undefined) return undefined
    return Math.min(pids, this.#quotas.processes ?? pids)
  }

  /** Returns no limits for a sandbox with a user of its own. `user` is undefined for our own user. */
  quotasOf(user: SandboxUser | undefined): UserLimits {
    return user !== undefined && user.uid !== user.shared ? {} : this.#quotas
  }

  /** Returns undefined if this process cannot create control groups. */
  async createCgroup({ id, limits }: SandboxSpec, record: SandboxRecord): Promise<Cgroup | undefined> {
    return this.cgroups?.create(`polar-${id}`, limits, async (folders) => {
      record.cgroup = folders
      await this.records.write(record)
    })
  }

  openSandbox(sandboxProcess: SandboxProcess): Sandbox {
    return new HostedSandbox(sandboxProcess, { records: this.records, spawn: this.spawn, now: this.#now })
  }

  /** Removes the files of a sandbox that has ended. */
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
