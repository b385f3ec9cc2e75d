import { chmod, mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { HOST_ENV } from './files/paths.ts'
import type { Snapshots } from './files/snapshots.ts'
import { HostedSandbox, joinPrefix, type HostedParts } from './hosted-sandbox.ts'
import { shareTree, type SandboxUser } from './limits/sandbox-users.ts'
import { NamespacePool } from './namespace-pool.ts'
import { HostedNamespace } from './process-namespace.ts'
import { startShell, type CommandNamespace, type WaitingShell } from './process/execution.ts'
import type { ProcessRef } from './process/processes.ts'
import type { SpawnedProcess } from './process/spawner.ts'
import { removeTree } from './records.ts'

/** What differs between the programs that assemble a sandbox from namespaces. */
export interface Isolation {
  /** The program, outside; it ends with the sandbox. */
  child: SpawnedProcess
  /** The sandbox's first process. */
  first: ProcessRef
  /** Killing these processes ends all others. */
  processes: readonly ProcessRef[]
  /** Variables of commands, besides those of the spec. */
  env: Readonly<Record<string, string>>
  /** Path of a file system of the sandbox that is kept in memory. */
  memoryStorage?: string
  /** Folder outside with the files that the sandbox wrote. */
  written: string
  /** The folder in `written` with the layer over the image. */
  upper: string
  /** Path of that layer in the folder of a snapshot. */
  snapshotLayer: string
  /** Whether an empty process namespace is known to be empty; see `HostedNamespace`. */
  canTell: boolean
  /** Command prefix that enters the network namespace. */
  networkPrefix: readonly string[]
  /** Command that creates a process namespace with a /proc of its own; all other namespaces are the sandbox's. */
  namespaceCommand(): readonly string[]
  /** Command prefix that enters the namespaces of a process, as the user of commands. */
  enter(first: ProcessRef): readonly string[]
  /** Adds the privileges to read all files that the sandbox wrote to a program of the machine. */
  visit(command: readonly string[]): readonly string[]
  /** Ends all processes. */
  end(): Promise<void>
}

interface NamespacedParts extends HostedParts {
  isolation: Isolation
  /** Undefined for our own user. */
  user: SandboxUser | undefined
  /** Limit of processes of the user namespace if no control group counts them; undefined: no limit. */
  maxProcesses: number | undefined
  /** Names of the snapshots that the sandbox is based on. */
  below: readonly string[]
  snapshots: Snapshots
}

/** A sandbox of namespaces of this machine; each command has a process namespace of its own. */
export class NamespacedSandbox extends HostedSandbox<NamespacedParts> {
  readonly #namespaces = new NamespacePool({
    make: () => {
      const { spawn, isolation } = this.parts
      return HostedNamespace.create(isolation.namespaceCommand(), { spawn, env: HOST_ENV, canTell: isolation.canTell })
    },
    enter: ({ first }) => this.#startShell(first),
  })

  protected isAlive(): boolean {
    const { child } = this.parts.isolation
    return child.exitCode === null && child.signalCode === null
  }

  protected openNamespace(): Promise<CommandNamespace> {
    return this.#namespaces.acquire()
  }

  protected toolPrefix(): readonly string[] {
    const { isolation } = this.parts
    return isolation.enter(isolation.first)
  }

  protected async readUsage(): Promise<string> {
    return (await this.#runOutside(['du', '-sk', '--', this.parts.isolation.written])).stdout
  }

  protected async storeSnapshot(name: string): Promise<void> {
    const { isolation, snapshots, below, user } = this.parts
    await snapshots.add(name, below, async (draft) => {
      const layer = join(draft, isolation.snapshotLayer)
      await mkdir(dirname(layer), { recursive: true, mode: 0o755 })
      const copy = ['cp', '-a', '--reflink=auto', '--', isolation.upper, layer]
      const { exitCode, stderr } = await this.#runOutside(copy)
      if (exitCode !== 0)
        throw new RolloutError('runtime.copy-failed', `Cannot store snapshot ${name}: ${stderr.trim().slice(-500)}`)
      await removeTree(join(layer, 'tmp'))
      await chmod(layer, 0o755)
      if (user !== undefined) await shareTree(layer, user)
    })
  }

  protected override async endHolder(): Promise<void> {
    await this.parts.isolation.end()
    await this.#namespaces.close()
    await this.parts.cgroup?.remove()
  }

  #startShell(first: ProcessRef): Promise<WaitingShell> {
    const { isolation, cgroup, maxProcesses, spawn, pipes } = this.parts
    const prefix = [
      ...joinPrefix(cgroup?.joinFiles ?? []),
      ...(maxProcesses === undefined ? [] : ['prlimit', `--nproc=${maxProcesses}:${maxProcesses}`]),
      ...isolation.enter(first),
    ]
    return startShell(prefix, { spawn, pipes, env: HOST_ENV, hasWaiter: true })
  }

  #runOutside(command: readonly string[]): ReturnType<typeof runProgram> {
    const [file, ...args] = this.parts.isolation.visit(command)
    return runProgram([file!, ...args], { env: HOST_ENV })
  }
}
