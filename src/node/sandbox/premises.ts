import { setTimeout as sleep } from 'node:timers/promises'
import type { RuntimeDeps, Sandbox, SandboxSpec } from '../runtimes/runtime.ts'
import { type Cgroup, Cgroups } from './cgroups.ts'
import { createCleanSpawn } from './clean-spawn.ts'
import { type Cell, HostedSandbox } from './hosted-sandbox.ts'
import { Pipes } from './pipes.ts'
import { Records, type SandboxRecord } from './records.ts'
import { type SnapshotLimits, Snapshots } from './snapshots.ts'
import { Spawner } from './spawner.ts'

/** How long a stop waits for the disk; what takes longer goes on without it. */
const REMOVE_MS = 1500

/** What a runtime needs whose sandboxes are processes of this machine: where they are written down, and what they share. */
export class Premises implements AsyncDisposable {
  /** Undefined where none can be made. */
  readonly cgroups = Cgroups.detect()
  readonly records: Records
  readonly snapshots: Snapshots
  readonly pipes: Pipes
  readonly spawn = createCleanSpawn()
  readonly spawner = new Spawner()
  readonly #now: () => number
  readonly #removing = new Set<Promise<void>>()

  constructor(deps: RuntimeDeps, limits: SnapshotLimits) {
    this.#now = () => deps.now()
    this.records = new Records(deps.dir)
    this.pipes = new Pipes(deps.dir)
    const inUse = () => this.records.snapshotsInUse()
    this.snapshots = new Snapshots(deps.dir, limits, { now: this.#now, inUse })
  }

  /** For operators. */
  get limitsNote(): string {
    return this.cgroups === undefined
      ? 'control groups are not ours to make: no limit on memory and cpu, and processes are counted by user namespace'
      : `limits by control groups ${this.cgroups.version}: ${this.cgroups.limits.join(', ')}`
  }

  /** Undefined where limits cannot be kept so. */
  async createCgroup({ id, limits }: SandboxSpec, record: SandboxRecord): Promise<Cgroup | undefined> {
    return this.cgroups?.create(`polar-${id}`, limits, async (places) => {
      record.cgroup = places
      await this.records.write(record)
    })
  }

  openSandbox(cell: Cell): Sandbox {
    return new HostedSandbox(cell, { records: this.records, spawn: this.spawn, now: this.#now })
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
