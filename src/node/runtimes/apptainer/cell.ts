import { chmod, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runProgram } from '../../../lib/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { Cgroup } from '../../sandbox/cgroups.ts'
import type { RemoteSpawn, SpawnedProcess } from '../../sandbox/spawner.ts'
import type { DoorServer } from '../../sandbox/doors.ts'
import { openEntry, type Entry, type Room } from '../../sandbox/execution.ts'
import { joinLead, type Cell } from '../../sandbox/hosted-sandbox.ts'
import type { Pipes } from '../../sandbox/pipes.ts'
import { childrenOf, identify, isAlive, signalProcess, type ProcessRef } from '../../sandbox/processes.ts'
import { removeTree, type SandboxRecord } from '../../sandbox/records.ts'
import { RoomPool, type Place } from '../../sandbox/room-pool.ts'
import type { Snapshots } from '../../sandbox/snapshots.ts'
import type { SandboxSpec, SandboxStats } from '../runtime.ts'
import {
  endOf,
  endSandbox,
  HOST_ENV,
  insidePath,
  layerOf,
  ready,
  START_MS,
  type Processes,
  type Rights,
} from './launch.ts'
import { callFilterOf, step } from './steps.ts'

/** Tells of the machine, not of the sandbox: names of keys, kernel memory, what every processor is about to do. */
const COVERED = ['/proc/keys', '/proc/key-users', '/proc/kcore', '/proc/timer_list']

export interface Doors {
  servers: readonly DoorServer[]
  doorPort: number | undefined
  proxyPort: number | undefined
}

export interface CellOptions {
  spec: SandboxSpec
  rights: Rights
  record: SandboxRecord
  folder: string
  processes: Processes
  /** What the image sets. */
  env: Readonly<Record<string, string>>
  cgroup: Cgroup | undefined
  doors: Doors
  /** Names of the snapshots it stands on. */
  below: readonly string[]
  snapshots: Snapshots
  spawn: RemoteSpawn
  pipes: Pipes
  discard(): Promise<void>
}

export class ApptainerCell implements Cell {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly doorPort: number | undefined
  readonly env: Readonly<Record<string, string>>
  readonly #options: CellOptions
  readonly #callFilter: string
  readonly #rooms: RoomPool<ApptainerPlace>

  constructor(options: CellOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = insidePath(options.spec.workdir)
    this.doorPort = options.doors.doorPort
    this.#options = options
    this.#callFilter = callFilterOf(options.rights.machine)
    const { proxyPort } = options.doors
    const proxy = `http://127.0.0.1:${proxyPort}`
    this.env = {
      ...options.env,
      ...(proxyPort !== undefined && { HTTP_PROXY: proxy, HTTPS_PROXY: proxy, http_proxy: proxy, https_proxy: proxy }),
      ...options.spec.env,
    }
    this.#rooms = new RoomPool({ make: () => this.#makePlace(), enter: (place) => this.#openEntry(place.first) })
  }

  isAlive(): boolean {
    const { child } = this.#options.processes
    return child.exitCode === null && child.signalCode === null
  }

  openRoom(): Promise<Room> {
    return this.#rooms.take()
  }

  toolLead(): readonly string[] {
    return this.#enter(this.#options.processes.first)
  }

  async countOutOfMemory(): Promise<number | undefined> {
    return this.#options.cgroup?.countOutOfMemory()
  }

  async stats(): Promise<SandboxStats> {
    const { stdout } = await this.#runOutside(['du', '-sk', '--', join(this.folder, 'rw')])
    const kilobytes = Number.parseInt(stdout, 10)
    const counted = await this.#options.cgroup?.stats()
    return { ...counted, ...(Number.isSafeInteger(kilobytes) && { diskBytes: kilobytes * 1024 }) }
  }

  async freeze(): Promise<void> {
    for (const door of this.#options.doors.servers) door.close()
  }

  async snapshot(name: string): Promise<void> {
    const { snapshots, below } = this.#options
    await snapshots.add(name, below, async (draft) => {
      const layer = layerOf(draft)
      const upper = join(layer, 'upper')
      await mkdir(layer, { mode: 0o755 })
      const copy = ['cp', '-a', '--reflink=auto', '--', join(this.folder, 'rw', 'upper'), upper]
      const { exitCode, stderr } = await this.#runOutside(copy)
      if (exitCode !== 0)
        throw new RolloutError('runtime.copy-failed', `Cannot keep ${name}: ${stderr.trim().slice(-500)}`)
      await removeTree(join(upper, 'tmp'))
      await chmod(upper, 0o755)
    })
  }

  async close(): Promise<void> {
    const { processes, doors, cgroup } = this.#options
    for (const door of doors.servers) door.close()
    await endSandbox(processes)
    await this.#rooms.close()
    await cgroup?.remove()
    await this.#options.discard()
  }

  async #makePlace(): Promise<ApptainerPlace> {
    const { processes, rights, spec, spawn } = this.#options
    const { machine, isRoot, owner } = rights
    const [file, ...args] = step(machine, 'room', processes.first, isRoot, owner, hasNetwork(spec), ...COVERED)
    const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env: HOST_ENV })
    try {
      await ready(child, AbortSignal.timeout(START_MS))
      const [pid] = await childrenOf(child.pid!)
      const first = pid === undefined ? undefined : await identify(pid)
      if (first === undefined) throw new Error('it ended at once')
      return new ApptainerPlace(child, first)
    } catch (cause) {
      child.kill('SIGKILL')
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.gone', `Nothing can be started in sandbox ${this.record.id}: ${reason}`, {
        cause,
      })
    }
  }

  #openEntry(first: ProcessRef): Promise<Entry> {
    const { cgroup, spec, spawn, pipes } = this.#options
    const { pids } = spec.limits
    const isCountedByUser = cgroup?.places.pids === undefined && pids !== undefined
    const lead = [
      ...joinLead(cgroup?.joinFiles ?? []),
      ...(isCountedByUser ? ['prlimit', `--nproc=${pids}:${pids}`] : []),
      ...this.#enter(first),
    ]
    return openEntry(lead, { spawn, pipes, env: HOST_ENV, hasWaiter: true })
  }

  /** Leads from here to the namespaces of that process, as the user commands run as. */
  #enter(first: ProcessRef): string[] {
    const { processes, rights, spec } = this.#options
    const { machine, isRoot, owner } = rights
    return step(machine, 'enter', first, processes.users, isRoot, owner, hasNetwork(spec), this.#callFilter)
  }

  /** With the rights to read whatever the sandbox wrote, but on this side. */
  #runOutside(command: readonly string[]): ReturnType<typeof runProgram> {
    const { processes, rights } = this.#options
    return runProgram(step(rights.machine, 'visit', processes.monitor, rights.isRoot, ...command), { env: HOST_ENV })
  }
}

/** A process namespace. */
class ApptainerPlace implements Place {
  readonly first: ProcessRef
  readonly #ended: Promise<void>

  constructor(child: SpawnedProcess, first: ProcessRef) {
    this.first = first
    this.#ended = endOf(child)
  }

  /**
   * Whoever outlives his parent here becomes a child of the first process, in the same step in which the parent ends; and
   * there is no child of anybody outside, which the filter of system calls refuses.
   */
  async isEmpty(): Promise<boolean> {
    return (await childrenOf(this.first.pid)).length === 0 && isAlive(this.first)
  }

  /** The first process of a process namespace is gone only after all others. */
  async end(): Promise<void> {
    await signalProcess(this.first, 'SIGKILL')
    await this.#ended
    while (await isAlive(this.first)) await sleep(2)
  }
}

/** One of its own, that is. */
function hasNetwork({ network }: SandboxSpec): boolean {
  return network.kind !== 'open'
}
