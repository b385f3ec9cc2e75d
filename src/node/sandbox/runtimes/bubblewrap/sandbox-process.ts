import { chmod } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { RemoteSpawn, SpawnedProcess } from '../../linux/process/spawner.ts'
import { startShell, type WaitingShell, type CommandNamespace } from '../../linux/process/execution.ts'
import { HostedNamespace } from '../../linux/process-namespace.ts'
import { countKills, joinPrefix, readStats, type SandboxProcess, type Counters } from '../../linux/hosted-sandbox.ts'
import { closeSockets, proxyVariables, type OpenSockets } from '../../linux/network/open-sockets.ts'
import { HOST_ENV, INSIDE_PATH, insidePath } from '../../linux/files/paths.ts'
import type { Pipes } from '../../linux/process/pipes.ts'
import { childrenOf, identify, isAlive, signalProcess, type ProcessRef } from '../../linux/process/processes.ts'
import { removeTree, type SandboxRecord } from '../../linux/records.ts'
import { NamespacePool } from '../../linux/namespace-pool.ts'
import type { Snapshots } from '../../linux/files/snapshots.ts'
import { untilExit, readyLines, START_MS } from '../../linux/process/started.ts'
import { shareTree, type SandboxUser } from '../../linux/limits/sandbox-users.ts'
import { bwrapLine, enterUsers, firstOf, type BubblewrapConfig } from './command-lines.ts'
import type { SandboxSpec, SandboxStats } from '../runtime.ts'

const REAP_MS = 500

export interface BubblewrapProcesses {
  /** bwrap itself, outside; it ends with the sandbox. */
  child: SpawnedProcess
  monitor: ProcessRef
  /** The sandbox's first process. */
  first: ProcessRef
  /** Holds the inner user namespace. */
  holder: ProcessRef
}

export interface BubblewrapProcessOptions extends Counters {
  spec: SandboxSpec
  config: BubblewrapConfig
  record: SandboxRecord
  folder: string
  processes: BubblewrapProcesses
  /** Limit of processes of the user namespace if no control group counts them; undefined: no limit. */
  maxProcesses: number | undefined
  sockets: OpenSockets
  /** Command prefix that installs the seccomp filter; empty if unsupported. */
  seccompPrefix: readonly string[]
  /** User that we become before entering; undefined if we are that user. */
  user: SandboxUser | undefined
  /** Home folder of the user inside. */
  home: string
  /** Names of the snapshots that the sandbox is based on. */
  below: readonly string[]
  snapshots: Snapshots
  /** Script of a namespace's first process. */
  init: string
  spawn: RemoteSpawn
  pipes: Pipes
  discard(): Promise<void>
}

export class BubblewrapSandboxProcess implements SandboxProcess {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly socketPort: number | undefined
  readonly #options: BubblewrapProcessOptions
  readonly env: Readonly<Record<string, string>>
  readonly #namespaces: NamespacePool<HostedNamespace>

  constructor(options: BubblewrapProcessOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = insidePath(options.spec.workdir)
    this.socketPort = options.sockets.socketPort
    this.#options = options
    this.env = {
      PATH: INSIDE_PATH,
      HOME: options.home,
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
    const { monitor } = this.#options.processes
    const written = `/proc/${monitor.pid}/root/sys/rw`
    const { stdout } = await this.#runOutside(['du', '-sk', '--', written])
    return readStats(this.#options, stdout)
  }

  async freeze(): Promise<void> {
    closeSockets(this.#options.sockets)
  }

  async snapshot(name: string): Promise<void> {
    const { snapshots, processes, below, user } = this.#options
    await snapshots.add(name, below, async (draft) => {
      const layer = join(draft, 'layer')
      const upper = `/proc/${processes.monitor.pid}/root/sys/rw/upper`
      const { exitCode, stderr } = await this.#runOutside(['cp', '-a', '--reflink=auto', '--', upper, layer])
      if (exitCode !== 0)
        throw new RolloutError('runtime.copy-failed', `Cannot store snapshot ${name}: ${stderr.trim().slice(-500)}`)
      await removeTree(join(layer, 'tmp'))
      await chmod(layer, 0o755)
      if (user !== undefined) await shareTree(layer, user)
    })
  }

  async close(): Promise<void> {
    const { processes, sockets, cgroup, memory } = this.#options
    closeSockets(sockets)
    memory?.[Symbol.dispose]()
    await endBubblewrap(processes)
    await this.#namespaces.close()
    await cgroup?.remove()
    await this.#options.discard()
  }

  /** Creates a process namespace with a /proc of its own; all other namespaces are the sandbox's. */
  async #createNamespace(): Promise<HostedNamespace> {
    const { processes, config, spec, init, spawn, seccompPrefix } = this.#options
    const network = spec.network.kind === 'open' ? [] : ['-n']
    const mounts = `--mount=/proc/${processes.monitor.pid}/ns/mnt`
    const enter = [
      'nsenter',
      '--preserve-credentials',
      '-t',
      String(processes.first.pid),
      mounts,
      '-i',
      '-u',
      ...network,
    ]
    const prefix = [...this.#becomeUser(), ...enterUsers(processes.monitor), ...enter]
    const [file, ...args] = [...prefix, ...bwrapLine(config, init, [])]
    const child = spawn(file!, args, { stdio: ['ignore', 'pipe', 'pipe'], env: HOST_ENV })
    try {
      await readyLines(child, ['ready'], AbortSignal.timeout(START_MS))
      const first = await firstOf(child.pid!)
      if (first === undefined) throw new Error('the process ended at once')
      const [idle] = await childrenOf(first.pid)
      const canTell = seccompPrefix.length > 0 && !config.userNamespaces
      return new HostedNamespace({ child, first, idle: idle === undefined ? undefined : await identify(idle), canTell })
    } catch (cause) {
      child.kill('SIGKILL')
      throw new RolloutError('runtime.gone', `Cannot start a command in sandbox ${this.record.id}`, { cause })
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
    const { processes, spec } = this.#options
    const network = spec.network.kind === 'open' ? [] : ['-n']
    const users = `--user=/proc/${processes.holder.pid}/ns/user`
    const enter = [
      'nsenter',
      '--preserve-credentials',
      users,
      '-t',
      String(first.pid),
      '-m',
      '-p',
      '-i',
      '-u',
      ...network,
    ]
    return [...this.#options.seccompPrefix, ...this.#becomeUser(), ...enterUsers(processes.monitor), ...enter]
  }

  #becomeUser(): string[] {
    const { user } = this.#options
    return ['setpriv', ...(user === undefined ? [] : becomeOptions(user)), '--no-new-privs']
  }

  /** Runs a program of the machine with the privileges to read all files that the sandbox wrote. */
  #runOutside(command: readonly string[]): ReturnType<typeof runProgram> {
    const { user, processes } = this.#options
    const prefix = user === undefined ? enterUsers(processes.monitor) : []
    return runProgram([...prefix, ...command] as unknown as [string, ...string[]], { env: HOST_ENV })
  }
}

/** Options of setpriv that switch to the user. */
export function becomeOptions({ uid, shared }: SandboxUser): string[] {
  return ['--reuid', String(uid), '--regid', String(shared), '--clear-groups']
}

/**
 * In this order, bwrap, the parent of both, reaps them and ends by itself; a machine may have no other process that
 * reaps.
 */
export async function endBubblewrap({
  child,
  first,
  holder,
}: Pick<BubblewrapProcesses, 'child' | 'first' | 'holder'>): Promise<void> {
  const ended = untilExit(child)
  await signalProcess(holder, 'SIGKILL')
  while (await isAlive(holder)) await sleep(1)
  await signalProcess(first, 'SIGKILL')
  await Promise.race([ended, sleep(REAP_MS, undefined, { ref: false })])
  child.kill('SIGKILL')
  await ended
  // The first process ends after all others.
  while (await isAlive(first)) await sleep(2)
}
