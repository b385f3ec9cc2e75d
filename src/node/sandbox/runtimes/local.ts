import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { HOST_ENV, HOST_PATH } from '../linux/files/paths.ts'
import { snapshotConfig } from '../linux/files/snapshots.ts'
import { HostRuntime } from '../linux/host-runtime.ts'
import { HostedSandbox, joinPrefix, type HostedParts } from '../linux/hosted-sandbox.ts'
import { findInit } from '../linux/init.ts'
import { listenHere } from '../linux/network/sandbox-sockets.ts'
import { HostedNamespace } from '../linux/process-namespace.ts'
import { startShell, type CommandNamespace } from '../linux/process/execution.ts'
import { endProcesses } from '../linux/process/processes.ts'
import type { SandboxRecord } from '../linux/records.ts'
import type { Runtime, RuntimeCapabilities, RuntimeCheck, RuntimeDeps, Sandbox, SandboxSpec } from './runtime.ts'

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
class LocalRuntime extends HostRuntime {
  readonly kind = 'local'
  readonly #config: LocalConfig
  #hasNamespaces: Promise<boolean> | undefined
  #init: Promise<string> | undefined

  constructor(config: LocalConfig, deps: RuntimeDeps) {
    super(deps, config)
    this.#config = config
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: false,
      isolatesProcesses: false,
      networks: ['open'],
      limits: this.limits,
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
    this.#init ??= findInit()
    const init = await this.#init
    const record = await this.records.create(spec, this.deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const folder = this.records.folderOf(spec.id)
    const [workdir, home] = [join(folder, 'work'), join(folder, 'home')]
    await mkdir(home, { mode: 0o755 })
    if (spec.snapshot === undefined) await mkdir(workdir, { mode: 0o755 })
    else await copyTree(await this.#treeOf(spec.snapshot), workdir)
    const actualPaths = await makeFolders(join(folder, 'folders'), spec.folders ?? [])
    const cgroup = await this.createCgroup(spec, record)
    const { socket } = spec
    const socketServer = socket === undefined ? undefined : await listenHere(socket.port, socket)
    undo.defer(() => socketServer?.close())
    signal.throwIfAborted()
    undo.move()
    return new LocalSandbox({
      ...this.hostedParts(spec, record, cgroup),
      workdir,
      env: {
        PATH: HOST_PATH,
        HOME: home,
        ...withActualPaths(spec.env, actualPaths),
        ...(!hasNamespaces && { [MARK]: `${folder}#` }),
      },
      socketPort: socketServer?.port,
      closeSockets: () => socketServer?.close(),
      hasNamespaces,
      init,
      snapshot: (name) => this.snapshots.add(name, [], (draft) => copyTree(workdir, join(draft, TREE))),
      // With namespaces, all commands have already ended with their namespaces, so no process has to be searched.
      discard: () => (hasNamespaces ? this.forget(record) : this.remove(spec.id)),
    })
  }

  protected override async endOthers({ id }: SandboxRecord): Promise<void> {
    await endProcesses(`${MARK}=${this.records.folderOf(id)}#`, 'environ')
  }

  async #treeOf(snapshot: string): Promise<string> {
    await this.snapshots.use(snapshot)
    return join(this.snapshots.folderOf(snapshot), TREE)
  }
}

interface LocalParts extends HostedParts {
  hasNamespaces: boolean
  /** Script of a namespace's first process. */
  init: string
  snapshot: (name: string) => Promise<void>
}

class LocalSandbox extends HostedSandbox<LocalParts> {
  protected isAlive(): boolean {
    return true
  }

  protected async openNamespace(): Promise<CommandNamespace> {
    const { folder, hasNamespaces, init, cgroup, spawn, pipes } = this.parts
    const joined = joinPrefix(cgroup?.joinFiles ?? [])
    const env = { ...HOST_ENV, [MARK]: `${folder}#` }
    if (!hasNamespaces) {
      // One mark for all commands: without namespaces, the end of a command also kills concurrent commands.
      const shell = await startShell(joined, { spawn, pipes, env, hasWaiter: false })
      return { shell, close: () => this.#endMarked() }
    }
    const holder = ['setpriv', '--pdeathsig', 'KILL', 'unshare', ...namespaceOptions(), '/bin/sh', '-c', init]
    const namespace = await HostedNamespace.create(holder, { spawn, env, canTell: false })
    const enter = process.getuid?.() === 0 ? [] : ['-U', '--preserve-credentials']
    const prefix = [...joined, 'nsenter', ...enter, '-t', String(namespace.first.pid), '-p', '-m']
    const shell = await startShell(prefix, { spawn, pipes, env, hasWaiter: true })
    return { shell, close: () => namespace.end() }
  }

  protected toolPrefix(): undefined {
    return undefined
  }

  protected async readUsage(): Promise<string> {
    return (await runProgram(['du', '-sk', '--', this.workdir], { env: HOST_ENV })).stdout
  }

  protected storeSnapshot(name: string): Promise<void> {
    return this.parts.snapshot(name)
  }

  protected override async endProcesses(): Promise<void> {
    await super.endProcesses()
    await this.#endMarked()
  }

  #endMarked(): Promise<void> {
    return endProcesses(`${MARK}=${this.parts.folder}#`, 'environ')
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
