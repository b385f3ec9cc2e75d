import { statfs } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type {
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxLimits,
  SandboxSpec,
} from '../runtimes/runtime.ts'
import { Cgroup, Cgroups } from './limits/cgroups.ts'
import { createCleanSpawn } from './process/clean-spawn.ts'
import type { HostedParts } from './hosted-sandbox.ts'
import { MemoryWatch } from './limits/memory-watch.ts'
import { Pipes } from './process/pipes.ts'
import { endProcesses, signalProcess } from './process/processes.ts'
import { Records, type SandboxRecord } from './records.ts'
import { type SnapshotLimits, Snapshots } from './files/snapshots.ts'
import { Spawner } from './process/spawner.ts'
import { trackSpawns } from './process/track-spawns.ts'
import type { SandboxUser } from './limits/sandbox-users.ts'
import { divideLimits, readUserLimits, type UserLimits } from './limits/user-quotas.ts'

/** Longest time that a stop waits for the removal of files; the removal then continues in the background. */
const REMOVE_MS = 1500
const DEFAULT_SANDBOXES = 8

/** A runtime whose sandboxes are processes of this machine. */
export abstract class HostRuntime implements Runtime {
  abstract readonly kind: string
  abstract readonly capabilities: RuntimeCapabilities
  /** Undefined if this process cannot create control groups. */
  protected readonly cgroups = Cgroups.detect()
  protected readonly records: Records
  protected readonly snapshots: Snapshots
  protected readonly spawn = createCleanSpawn()
  protected readonly spawner = new Spawner()
  protected readonly deps: RuntimeDeps
  readonly #pipes: Pipes
  /** The share of its user's limits that one sandbox may use. */
  readonly #quotas: UserLimits
  readonly #watch = new MemoryWatch()
  readonly #removing = new Set<Promise<void>>()

  constructor(deps: RuntimeDeps, limits: SnapshotLimits) {
    this.deps = deps
    this.#quotas = divideLimits(readUserLimits(), deps.sandboxes ?? DEFAULT_SANDBOXES)
    this.records = new Records(deps.dir)
    this.#pipes = new Pipes(deps.dir)
    const inUse = () => this.records.snapshotsInUse()
    this.snapshots = new Snapshots(deps.dir, limits, { now: () => deps.now(), inUse })
  }

  abstract check(signal: AbortSignal): Promise<RuntimeCheck>
  abstract start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox>

  list(): Promise<SandboxInfo[]> {
    return this.records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.records.load(id)
    if (record === undefined) return
    for (const ref of record.processes) await signalProcess(ref, 'SIGKILL')
    await this.endOthers(record)
    await this.forget(record)
  }

  removeOldSnapshots(): Promise<string[]> {
    return this.snapshots.prune()
  }

  removeSnapshot(name: string): Promise<void> {
    return this.snapshots.remove(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#removing)
    await this.snapshots[Symbol.asyncDispose]()
    await this.#pipes[Symbol.asyncDispose]()
    await this.spawner[Symbol.asyncDispose]()
  }

  /**
   * Kills processes of commands, and of a start that was interrupted. They are not in the record, but all have the
   * sandbox's root among their mounts.
   */
  protected async endOthers(record: SandboxRecord): Promise<void> {
    await endProcesses(`${rootName(record)} `, 'mounts')
  }

  /** Removes the control group and the files of a sandbox that has ended. */
  protected async forget({ id, cgroup }: SandboxRecord): Promise<void> {
    if (cgroup !== undefined) await new Cgroup(cgroup).remove()
    await this.records.remove(id)
  }

  /** Note for operators about how limits are enforced. */
  protected get limitsNote(): string {
    const { cgroups } = this
    if (cgroups === undefined)
      return 'control groups are not available: this process measures memory and kills processes over the limit with a delay; processes are counted per user namespace; cpu is not limited'
    const memory = cgroups.limits.includes('memoryMb') ? '' : '; memory is measured and limited by this process'
    return `limits by control groups ${cgroups.version}: ${cgroups.limits.join(', ')}${memory}`
  }

  /** The limits that are enforced for every sandbox. */
  protected get limits(): (keyof SandboxLimits)[] {
    return [...new Set([...(this.cgroups?.limits ?? []), 'memoryMb'] as const)]
  }

  /**
   * The parts of a sandbox that do not depend on the runtime. Without a memory control group, the memory of its
   * processes is measured and limited by this process. `storage` is a path in a file system of the sandbox that is kept
   * in memory.
   */
  protected hostedParts(
    { limits: { memoryMb } }: SandboxSpec,
    record: SandboxRecord,
    cgroup: Cgroup | undefined,
    storage?: string,
  ): Omit<HostedParts, 'workdir' | 'env' | 'socketPort' | 'closeSockets' | 'discard'> {
    const parts = {
      record,
      records: this.records,
      folder: this.records.folderOf(record.id),
      cgroup,
      helperSpawn: this.spawn,
      pipes: this.#pipes,
      now: () => this.deps.now(),
    }
    if (cgroup?.folders.memory !== undefined) return { ...parts, spawn: this.spawner.spawn, memory: undefined }
    const tracked = trackSpawns(this.spawner.spawn)
    const storedBytes = async (): Promise<number> => {
      const stats = storage === undefined ? undefined : await statfs(storage).catch(() => undefined)
      return stats === undefined ? 0 : (stats.blocks - stats.bfree) * stats.bsize
    }
    const limitBytes = memoryMb === undefined ? undefined : memoryMb * 1024 * 1024
    const memory = this.#watch.add({ limitBytes, roots: () => tracked.pids(), storedBytes })
    return { ...parts, spawn: tracked.spawn, memory }
  }

  /**
   * Limit of processes of the sandbox's user namespace; undefined if a control group counts them or there is no limit.
   */
  protected maxProcesses({ limits: { pids } }: SandboxSpec, cgroup: Cgroup | undefined): number | undefined {
    if (pids === undefined || cgroup?.folders.pids !== undefined) return undefined
    return Math.min(pids, this.#quotas.processes ?? pids)
  }

  /** Returns no limits for a sandbox with a user of its own. `user` is undefined for our own user. */
  protected quotasOf(user: SandboxUser | undefined): UserLimits {
    return user !== undefined && user.uid !== user.shared ? {} : this.#quotas
  }

  /** Returns undefined if this process cannot create control groups. */
  protected async createCgroup({ id, limits }: SandboxSpec, record: SandboxRecord): Promise<Cgroup | undefined> {
    return this.cgroups?.create(`polar-${id}`, limits, async (folders) => {
      record.cgroup = folders
      await this.records.write(record)
    })
  }

  /** Removes the files of a sandbox that has ended; a large tree is removed in the background. */
  protected async discard(id: string): Promise<void> {
    const removing = this.records.remove(id).finally(() => this.#removing.delete(removing))
    this.#removing.add(removing)
    await Promise.race([removing, sleep(REMOVE_MS, undefined, { ref: false })])
  }
}

/** Name of a mount of the sandbox, by which its processes are found. */
export function rootName({ token }: SandboxRecord): string {
  return `polar-${token}`
}
