import { chmod, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { startShell, type WaitingShell, type CommandNamespace } from '../../linux/process/execution.ts'
import { HostedNamespace } from '../../linux/process-namespace.ts'
import { countKills, joinPrefix, readStats, type SandboxProcess, type Counters } from '../../linux/hosted-sandbox.ts'
import { closeSockets, proxyVariables, type OpenSockets } from '../../linux/network/open-sockets.ts'
import { COVERED, HOST_ENV, insidePath } from '../../linux/files/paths.ts'
import type { Pipes } from '../../linux/process/pipes.ts'
import { childrenOf, identify, type ProcessRef } from '../../linux/process/processes.ts'
import { removeTree, type SandboxRecord } from '../../linux/records.ts'
import { NamespacePool } from '../../linux/namespace-pool.ts'
import type { Snapshots } from '../../linux/files/snapshots.ts'
import type { RemoteSpawn } from '../../linux/process/spawner.ts'
import { readyLines, START_MS } from '../../linux/process/started.ts'
import { shareTree, type SandboxUser } from '../../linux/limits/sandbox-users.ts'
import type { SandboxSpec, SandboxStats } from '../runtime.ts'
import { endApptainer, layerOf, type ApptainerProcesses, type Privileges } from './launch.ts'
import { seccompFilterOf, step } from './steps.ts'

export interface ApptainerProcessOptions extends Counters {
  spec: SandboxSpec
  /** Undefined for our own user. */
  user: SandboxUser | undefined
  privileges: Privileges
  record: SandboxRecord
  folder: string
  processes: ApptainerProcesses
  /** Variables that the image sets. */
  env: Readonly<Record<string, string>>
  /** Limit of processes of the user namespace if no control group counts them; undefined: no limit. */
  maxProcesses: number | undefined
  sockets: OpenSockets
  /** Names of the snapshots that the sandbox is based on. */
  below: readonly string[]
  snapshots: Snapshots
  spawn: RemoteSpawn
  pipes: Pipes
  discard(): Promise<void>
}

export class ApptainerSandboxProcess implements SandboxProcess {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly socketPort: number | undefined
  readonly env: Readonly<Record<string, string>>
  readonly #options: ApptainerProcessOptions
  readonly #seccompFilter: string
  readonly #namespaces: NamespacePool<HostedNamespace>

  constructor(options: ApptainerProcessOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = insidePath(options.spec.workdir)
    this.socketPort = options.sockets.socketPort
    this.#options = options
    this.#seccompFilter = seccompFilterOf(options.privileges.architecture)
    this.env = {
      ...options.env,
      ...proxyVariables(options.sockets),
      ...options.spec.env,
    }
    this.#namespaces = new NamespacePool({
      make: () => this.#createNamespace(),
      enter: (namespace) => this.#startShell(namespace.first),
    })
  }

  isAlive(): boolean {
    const { child } = this.#options.processes
    return child.exitCode === null && child.signalCode === null
  }

  openNamespace(): Promise<CommandNamespace> {
    return this.#namespaces.acquire()
  }

  toolPrefix(): readonly string[] {
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
    closeSockets(this.#options.sockets)
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
        throw new RolloutError('runtime.copy-failed', `Cannot store snapshot ${name}: ${stderr.trim().slice(-500)}`)
      await removeTree(join(upper, 'tmp'))
      await chmod(upper, 0o755)
      if (user !== undefined) await shareTree(upper, user)
    })
  }

  async close(): Promise<void> {
    const { processes, sockets, cgroup, memory } = this.#options
    closeSockets(sockets)
    memory?.[Symbol.dispose]()
    await endApptainer(processes)
    await this.#namespaces.close()
    await cgroup?.remove()
    await this.#options.discard()
  }

  async #createNamespace(): Promise<HostedNamespace> {
    const { processes, privileges, spec, spawn } = this.#options
    const { architecture, isRoot, owner } = privileges
    const [file, ...args] = step(
      architecture,
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
      if (first === undefined) throw new Error('the process ended at once')
      return new HostedNamespace({ child, first, canTell: true })
    } catch (cause) {
      child.kill('SIGKILL')
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.gone', `Cannot start a command in sandbox ${this.record.id}: ${reason}`, {
        cause,
      })
    }
  }

  #startShell(first: ProcessRef): Promise<WaitingShell> {
    const { cgroup, maxProcesses, spawn, pipes } = this.#options
    const prefix = [
      ...joinPrefix(cgroup?.joinFiles ?? []),
      ...(maxProcesses === undefined ? [] : ['prlimit', `--nproc=${maxProcesses}:${maxProcesses}`]),
      ...this.#enter(first),
    ]
    return startShell(prefix, { spawn, pipes, env: HOST_ENV, hasWaiter: true })
  }

  /** Command prefix that enters the namespaces of a process, as the user of commands. */
  #enter(first: ProcessRef): string[] {
    const { processes, privileges, spec } = this.#options
    const { architecture, isRoot, owner } = privileges
    return step(architecture, 'enter', first, processes.users, isRoot, owner, hasNetwork(spec), this.#seccompFilter)
  }

  /** Runs a program of the machine with the privileges to read all files that the sandbox wrote. */
  #runOutside(command: readonly string[]): ReturnType<typeof runProgram> {
    const { processes, privileges } = this.#options
    return runProgram(step(privileges.architecture, 'visit', processes.monitor, privileges.isRoot, ...command), {
      env: HOST_ENV,
    })
  }
}

/** Whether the sandbox has a network namespace of its own. */
function hasNetwork({ network }: SandboxSpec): boolean {
  return network.kind !== 'open'
}
