import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { Cgroup } from '../linux/limits/cgroups.ts'
import { START_MS } from '../linux/process/started.ts'
import { listenHere, type SocketServer } from '../linux/network/sandbox-sockets.ts'
import { startShell, type CommandNamespace } from '../linux/process/execution.ts'
import { findInit } from '../linux/init.ts'
import { countKills, joinPrefix, readStats, type SandboxProcess, type Counters } from '../linux/hosted-sandbox.ts'
import { HOST_ENV, HOST_PATH } from '../linux/files/paths.ts'
import type { Pipes } from '../linux/process/pipes.ts'
import { HostRuntimeState } from '../linux/host-runtime-state.ts'
import {
  childrenOf,
  endProcesses,
  identify,
  isAlive,
  signalProcess,
  type ProcessRef,
} from '../linux/process/processes.ts'
import type { SandboxRecord } from '../linux/records.ts'
import { snapshotConfig } from '../linux/files/snapshots.ts'
import type { RemoteSpawn, SpawnedProcess } from '../linux/process/spawner.ts'
import type {
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxSpec,
  SandboxStats,
} from './runtime.ts'

const LocalConfig = z.strictObject({
  kind: z.literal('local'),
  allowUnenforced: z
    .boolean()
    .default(false)
    .describe('Whether to accept network policies other than open, which are then not enforced'),
  ...snapshotConfig,
})
type LocalConfig = z.infer<typeof LocalConfig>

export const local: Plug<typeof LocalConfig, RuntimeDeps, Runtime> = {
  config: LocalConfig,
  create: (config, deps) => new LocalRuntime(config, deps),
}

const MARK = 'POLAR_SANDBOX'
/** Folder of the files in the folder of a snapshot. */
const TREE = 'tree'

/**
 * No isolation: a folder, a clean environment, and the privileges of this process. For tests and trusted programs. It
 * guarantees that a command ends with all its descendants: each command has a process namespace if the machine permits
 * it. Otherwise processes are found by a variable in their environment, which a hostile program can remove.
 */
class LocalRuntime implements Runtime {
  readonly kind = 'local'
  readonly #config: LocalConfig
  readonly #deps: RuntimeDeps
  readonly #host: HostRuntimeState
  #hasNamespaces: Promise<boolean> | undefined
  #init: Promise<string> | undefined

  constructor(config: LocalConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#host = new HostRuntimeState(deps, config)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: false,
      isolatesProcesses: false,
      networks: ['open'],
      limits: this.#host.limits,
      images: 'none',
      supportsSnapshots: true,
    }
  }

  async check(): Promise<RuntimeCheck> {
    this.#hasNamespaces ??= canMakeNamespaces()
    const hasNamespaces = await this.#hasNamespaces
    return {
      isUsable: true,
      notes: [
        "nothing is isolated: commands have the node's access to files, processes and network",
        ...(this.#config.allowUnenforced
          ? ['network policies are not enforced: commands have the network of the machine']
          : []),
        hasNamespaces
          ? 'each command has a process namespace, so no process outlives it'
          : 'process namespaces are not available: a program that changes its environment can outlive its command',
      ],
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    if (spec.image !== undefined) throw unsupported('an image')
    if (spec.network.kind !== 'open' && !this.#config.allowUnenforced)
      throw new RolloutError(
        'runtime.unsupported',
        `local cannot enforce the network policy ${spec.network.kind} for sandbox ${spec.id}: commands have the machine's network; use open, another runtime, or set runtime.allowUnenforced`,
      )
    if (spec.mounts.some(({ source, target }) => source !== target)) throw unsupported('mounts under another path')
    this.#hasNamespaces ??= canMakeNamespaces()
    const hasNamespaces = await this.#hasNamespaces
    this.#init ??= findInit(HOST_ENV)
    const init = await this.#init
    const record = await this.#host.records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const folder = this.#host.records.folderOf(spec.id)
    const [workdir, home] = [join(folder, 'work'), join(folder, 'home')]
    await mkdir(home, { mode: 0o755 })
    if (spec.snapshot === undefined) await mkdir(workdir, { mode: 0o755 })
    else await copyTree(await this.#treeOf(spec.snapshot), workdir)
    const actualPaths = await makeFolders(join(folder, 'folders'), spec.folders ?? [])
    const cgroup = await this.#host.createCgroup(spec, record)
    const { socket } = spec
    const socketServer = socket === undefined ? undefined : await listenHere(socket.port, socket)
    undo.defer(() => socketServer?.close())
    signal.throwIfAborted()
    undo.move()
    const { spawn, memory } = this.#host.guardMemory(spec, cgroup)
    const sandboxProcess = new LocalSandboxProcess({
      record,
      folder,
      workdir,
      env: { PATH: HOST_PATH, HOME: home, ...withActualPaths(spec.env, actualPaths) },
      hasNamespaces,
      cgroup,
      memory,
      socket: socketServer,
      snapshot: (name) => this.#host.snapshots.add(name, [], (draft) => copyTree(workdir, join(draft, TREE))),
      init,
      spawn,
      pipes: this.#host.pipes,
      // With namespaces, all commands have already ended with their namespaces, so no process has to be searched.
      discard: () => (hasNamespaces ? this.#forget(record) : this.remove(spec.id)),
    })
    return this.#host.openSandbox(sandboxProcess)
  }

  list(): Promise<SandboxInfo[]> {
    return this.#host.records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.#host.records.load(id)
    if (record === undefined) return
    await endProcesses(`${MARK}=${this.#host.records.folderOf(id)}#`, 'environ')
    await this.#forget(record)
  }

  async #forget({ id, cgroup }: SandboxRecord): Promise<void> {
    if (cgroup !== undefined) await new Cgroup(cgroup).remove()
    await this.#host.records.remove(id)
  }

  removeOldSnapshots(): Promise<string[]> {
    return this.#host.snapshots.prune()
  }

  removeSnapshot(name: string): Promise<void> {
    return this.#host.snapshots.remove(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#host[Symbol.asyncDispose]()
  }

  async #treeOf(snapshot: string): Promise<string> {
    await this.#host.snapshots.use(snapshot)
    return join(this.#host.snapshots.folderOf(snapshot), TREE)
  }
}

interface LocalProcessOptions extends Counters {
  record: SandboxRecord
  folder: string
  workdir: string
  env: Readonly<Record<string, string>>
  hasNamespaces: boolean
  socket: SocketServer | undefined
  snapshot: (name: string) => Promise<void>
  /** Script of a namespace's first process. */
  init: string
  spawn: RemoteSpawn
  pipes: Pipes
  discard(): Promise<void>
}

class LocalSandboxProcess implements SandboxProcess {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly socketPort: number | undefined
  readonly env: Readonly<Record<string, string>>
  readonly snapshot: (name: string) => Promise<void>
  readonly #options: LocalProcessOptions

  constructor(options: LocalProcessOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = options.workdir
    this.socketPort = options.socket?.port
    this.env = { ...options.env, ...(!options.hasNamespaces && { [MARK]: `${options.folder}#` }) }
    this.snapshot = (name) => options.snapshot(name)
    this.#options = options
  }

  isAlive(): boolean {
    return true
  }

  async openNamespace(): Promise<CommandNamespace> {
    const { folder, hasNamespaces, init, spawn, pipes } = this.#options
    const mark = `${folder}#`
    const joined = joinPrefix(this.#options.cgroup?.joinFiles ?? [])
    const env = { ...HOST_ENV, [MARK]: mark }
    if (!hasNamespaces) {
      // One mark for all commands: without namespaces, the end of a command also kills concurrent commands.
      const shell = await startShell(joined, { spawn, pipes, env, hasWaiter: false })
      return { shell, close: () => endProcesses(`${MARK}=${mark}`, 'environ') }
    }
    const holder = ['--pdeathsig', 'KILL', 'unshare', ...namespaceOptions(), '/bin/sh', '-c', init]
    const child = spawn('setpriv', holder, { stdio: ['ignore', 'pipe', 'ignore'], env })
    const ended = new Promise((resolve) => child.once('exit', resolve))
    const first = await firstOf(child)
    const enter = process.getuid?.() === 0 ? [] : ['-U', '--preserve-credentials']
    const prefix = [...joined, 'nsenter', ...enter, '-t', String(first.pid), '-p', '-m']
    const close = async (): Promise<void> => {
      await signalProcess(first, 'SIGKILL')
      await ended
      while (await isAlive(first)) await sleep(2)
    }
    return { shell: await startShell(prefix, { spawn, pipes, env, hasWaiter: true }), close }
  }

  toolPrefix(): undefined {
    return undefined
  }

  async countOutOfMemory(): Promise<number | undefined> {
    return countKills(this.#options)
  }

  async stats(): Promise<SandboxStats> {
    const { stdout } = await runProgram(['du', '-sk', '--', this.workdir], { env: HOST_ENV })
    return readStats(this.#options, stdout)
  }

  async freeze(): Promise<void> {
    this.#options.socket?.close()
    await endProcesses(`${MARK}=${this.folder}#`, 'environ')
  }

  async close(): Promise<void> {
    this.#options.socket?.close()
    this.#options.memory?.[Symbol.dispose]()
    await this.#options.discard()
  }
}

function namespaceOptions(): string[] {
  const ids = process.getuid?.() === 0 ? [] : [`--map-user=${process.getuid?.()}`, `--map-group=${process.getgid?.()}`]
  return [...ids, '--pid', '--fork', '--kill-child', '--mount-proc']
}

async function canMakeNamespaces(): Promise<boolean> {
  const { exitCode } = await runProgram(['unshare', ...namespaceOptions(), 'true'], { env: HOST_ENV })
  return exitCode === 0
}

/** Returns the first process of the namespace when it has reported that it is ready. */
async function firstOf(child: SpawnedProcess): Promise<ProcessRef> {
  try {
    await new Promise<void>((resolve, reject) => {
      child.stdout!.once('data', () => resolve())
      child.once('error', reject).once('exit', () => reject(new Error('the process ended at once')))
      setTimeout(() => reject(new Error('no response in time')), START_MS).unref()
    })
    const [pid] = await childrenOf(child.pid!)
    const first = pid === undefined ? undefined : await identify(pid)
    if (first === undefined) throw new Error('the process ended at once')
    return first
  } catch (cause) {
    child.kill('SIGKILL')
    throw new RolloutError('runtime.start-failed', 'Cannot create a process namespace', { cause })
  }
}

async function copyTree(from: string, to: string): Promise<void> {
  const { exitCode, stderr } = await runProgram(['cp', '-a', '--reflink=auto', '--', from, to], { env: HOST_ENV })
  if (exitCode !== 0) throw new RolloutError('runtime.copy-failed', `Cannot copy ${from}: ${stderr.trim()}`)
}

/** Creates each folder below `base`. Returns a map from the first folder to its actual path. */
async function makeFolders(base: string, folders: readonly string[]): Promise<ReadonlyMap<string, string>> {
  for (const folder of folders) await mkdir(join(base, folder), { recursive: true, mode: 0o755 })
  const [top] = folders
  return new Map(top === undefined ? [] : [[top, join(base, top)]])
}

/** Replaces the path of a folder by its actual path in values that name it or a path below it. */
function withActualPaths(
  env: Readonly<Record<string, string>>,
  actualPaths: ReadonlyMap<string, string>,
): Record<string, string> {
  const toActual = (value: string): string => {
    const top = [...actualPaths.keys()].find((folder) => `${value}/`.startsWith(`${folder}/`))
    return top === undefined ? value : `${actualPaths.get(top)}${value.slice(top.length)}`
  }
  return Object.fromEntries(Object.entries(env).map(([name, value]) => [name, toActual(value)]))
}

function unsupported(what: string): RolloutError {
  return new RolloutError('runtime.unsupported', `local does not support ${what}; use another runtime`)
}
