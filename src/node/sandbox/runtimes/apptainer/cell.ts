import { chmod, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { openEntry, type Entry, type Room } from '../../linux/process/execution.ts'
import { HostedPlace } from '../../linux/process-namespace.ts'
import { countKills, joinLead, readStats, type Cell, type Counters } from '../../linux/hosted-sandbox.ts'
import { closeDoors, proxyVariables, type Doors } from '../../linux/network/open-sockets.ts'
import { COVERED, HOST_ENV, insidePath } from '../../linux/files/paths.ts'
import type { Pipes } from '../../linux/process/pipes.ts'
import { childrenOf, identify, type ProcessRef } from '../../linux/process/processes.ts'
import { removeTree, type SandboxRecord } from '../../linux/records.ts'
import { RoomPool } from '../../linux/namespace-pool.ts'
import type { Snapshots } from '../../linux/files/snapshots.ts'
import type { RemoteSpawn } from '../../linux/process/spawner.ts'
import { readyLines, START_MS } from '../../linux/process/started.ts'
import { shareTree, type SandboxUser } from '../../linux/limits/user-numbers.ts'
import type { SandboxSpec, SandboxStats } from '../runtime.ts'
import { endSandbox, layerOf, type Processes, type Rights } from './launch.ts'
import { callFilterOf, step } from './steps.ts'

export interface CellOptions extends Counters {
  spec: SandboxSpec
  /** Undefined for our own. */
  user: SandboxUser | undefined
  rights: Rights
  record: SandboxRecord
  folder: string
  processes: Processes
  /** What the image sets. */
  env: Readonly<Record<string, string>>
  /** Most processes of its user namespace where no control group counts them; absent: no limit. */
  maxProcesses: number | undefined
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
  readonly #rooms: RoomPool<HostedPlace>

  constructor(options: CellOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = insidePath(options.spec.workdir)
    this.doorPort = options.doors.doorPort
    this.#options = options
    this.#callFilter = callFilterOf(options.rights.machine)
    this.env = {
      ...options.env,
      ...proxyVariables(options.doors),
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
    return countKills(this.#options)
  }

  async stats(): Promise<SandboxStats> {
    const { stdout } = await this.#runOutside(['du', '-sk', '--', join(this.folder, 'rw')])
    return readStats(this.#options, stdout)
  }

  async freeze(): Promise<void> {
    closeDoors(this.#options.doors)
  }

  async snapshot(name: string): Promise<void> {
    const { snapshots, below, user } = this.#options
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
      if (user !== undefined) await shareTree(upper, user)
    })
  }

  async close(): Promise<void> {
    const { processes, doors, cgroup, memory } = this.#options
    closeDoors(doors)
    memory?.[Symbol.dispose]()
    await endSandbox(processes)
    await this.#rooms.close()
    await cgroup?.remove()
    await this.#options.discard()
  }

  async #makePlace(): Promise<HostedPlace> {
    const { processes, rights, spec, spawn } = this.#options
    const { machine, isRoot, owner } = rights
    const [file, ...args] = step(
      machine,
      'createNamespace',
      processes.first,
      isRoot,
      owner,
      hasNetwork(spec),
      ...COVERED,
    )
    const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env: HOST_ENV })
    try {
      await readyLines(child, ['ready'], AbortSignal.timeout(START_MS))
      const [pid] = await childrenOf(child.pid!)
      const first = pid === undefined ? undefined : await identify(pid)
      if (first === undefined) throw new Error('it ended at once')
      return new HostedPlace({ child, first, canTell: true })
    } catch (cause) {
      child.kill('SIGKILL')
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.gone', `Nothing can be started in sandbox ${this.record.id}: ${reason}`, {
        cause,
      })
    }
  }

  #openEntry(first: ProcessRef): Promise<Entry> {
    const { cgroup, maxProcesses, spawn, pipes } = this.#options
    const lead = [
      ...joinLead(cgroup?.joinFiles ?? []),
      ...(maxProcesses === undefined ? [] : ['prlimit', `--nproc=${maxProcesses}:${maxProcesses}`]),
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

/** One of its own, that is. */
function hasNetwork({ network }: SandboxSpec): boolean {
  return network.kind !== 'open'
}
