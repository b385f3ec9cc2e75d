import { mkdir, realpath, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { findSeccompPrefix } from '../linux/limits/seccomp-filter.ts'
import { Cgroup } from '../linux/limits/cgroups.ts'
import { trySandbox } from '../linux/check-sandbox.ts'
import { findInit, PORTABLE_INIT } from '../linux/init.ts'
import { canMapLayers, mapVariables } from '../linux/files/map-layers.ts'
import { closeSockets, openSockets } from '../linux/network/open-sockets.ts'
import { HOST_ENV, INSIDE_HOME, INSIDE_ID, insidePath, resolveMountSource } from '../linux/files/paths.ts'
import { HostRuntimeState } from '../linux/host-runtime-state.ts'
import { endProcesses, identify, signalProcess } from '../linux/process/processes.ts'
import type { SandboxRecord } from '../linux/records.ts'
import { readyLines, START_MS } from '../linux/process/started.ts'
import { type SandboxUser, SandboxUsers } from '../linux/limits/sandbox-users.ts'
import { toSysctls } from '../linux/limits/user-quotas.ts'
import {
  becomeOptions,
  BubblewrapSandboxProcess,
  endBubblewrap,
  type BubblewrapProcesses,
} from './bubblewrap/sandbox-process.ts'
import { BubblewrapConfig, bwrapLine, enterUsers, firstOf } from './bubblewrap/command-lines.ts'
import { locateProgram, type ReachableProgram } from './bubblewrap/program.ts'
import { addUserNamespace, mountTree, prepareMachineTree, type MachineTree } from './bubblewrap/machine-tree.ts'
import type {
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxSpec,
} from './runtime.ts'

export const bubblewrap: Plug<typeof BubblewrapConfig, RuntimeDeps, Runtime> = {
  config: BubblewrapConfig,
  create: (config, deps) => new BubblewrapRuntime(config, deps),
}

/**
 * Namespaces without a daemon. A sandbox has three idle processes: bwrap, the first process of its process namespace,
 * and the holder of its inner user namespace. Commands enter from outside, each in a process namespace of its own, so
 * that killing the first process of that namespace ends all of it. All sandboxes end with this process.
 *
 * There are two user namespaces. The outer one owns all other namespaces; its root is an unprivileged user of the
 * machine: our own user, or one of `SandboxUsers` if we are root. Commands run in the inner one, as a user without
 * capabilities, and cannot create a third.
 */
class BubblewrapRuntime implements Runtime {
  readonly kind = 'bubblewrap'
  readonly #config: BubblewrapConfig
  readonly #deps: RuntimeDeps
  readonly #host: HostRuntimeState
  readonly #isRoot = process.getuid?.() === 0
  readonly #users: SandboxUsers
  #tree: Promise<MachineTree> | undefined
  #seccompPrefix: ReturnType<typeof findSeccompPrefix> | undefined
  #init: Promise<string> | undefined
  #program: Promise<ReachableProgram> | undefined
  #canMap: Promise<boolean> | undefined

  constructor(config: BubblewrapConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#host = new HostRuntimeState(deps, config)
    this.#users = new SandboxUsers(config.uid)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      // Without control groups, the number of processes can still be limited, per user namespace.
      limits: [...new Set(['pids', 'diskMb', ...this.#host.limits] as const)],
      images: 'optional',
      supportsSnapshots: true,
    }
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program } = this.#config
    for (const tool of [program, 'nsenter', 'unshare', 'setpriv', 'tar', 'mkfifo']) {
      const { exitCode } = await runProgram([tool, '--version'], { env: HOST_ENV, signal })
      if (exitCode !== 0) return { isUsable: false, reason: `${tool} is not installed` }
    }
    const failure = await trySandbox(this, { now: this.#deps.now() }, signal)
    if (failure !== undefined) return { isUsable: false, reason: failure }
    return {
      isUsable: true,
      notes: [
        this.#isRoot
          ? `the node runs as root; each sandbox has a user of its own from ${this.#config.uid} up, or ${this.#config.uid} with a writable mount`
          : 'the node does not run as root; sandboxes run as its user, without capabilities, and have a share of its limits (inotify, signals, processes)',
        this.#host.limitsNote,
        (await this.#seccompPrefix) === undefined
          ? 'system calls are not filtered, because perl is missing: sandboxes can access the keyrings of the login'
          : 'system calls are filtered',
        'with a disk limit, written files are kept in memory; otherwise on disk',
        'allow uses a proxy for HTTP and CONNECT; open is the network of the machine, including its own services',
      ],
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    await makeDirectories(this.#deps.dir, 0o700)
    this.#tree ??= prepareMachineTree(this.#deps.dir, this.#config.visible)
    const tree = await this.#tree
    this.#seccompPrefix ??= findSeccompPrefix(HOST_ENV, { mayMount: this.#config.userNamespaces })
    const seccompPrefix = await this.#seccompPrefix
    this.#init ??= findInit(HOST_ENV)
    this.#program ??= locateProgram(this.#config.program)
    const program = await this.#program
    const config = { ...this.#config, program: program.path }
    // An image may have other implementations of these programs.
    const init = spec.image === undefined ? await this.#init : PORTABLE_INIT
    const record = await this.#host.records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const user = await this.#acquireUser(spec)
    undo.defer(() => user?.release())
    const below = spec.snapshot === undefined ? [] : await this.#host.snapshots.use(spec.snapshot)
    const layers = await this.#layersOf(spec, tree, below)
    const folder = this.#host.records.folderOf(spec.id)
    await mkdir(join(folder, 'rw'), { mode: 0o755 })
    const cgroup = await this.#host.createCgroup(spec, record)
    const processes = await this.#launch(spec, { record, folder, layers, tree, init, config, program, user }, signal)
    undo.defer(() => endBubblewrap(processes))
    record.processes = [processes.monitor, processes.first, processes.holder]
    await this.#host.records.write(record)
    const sockets = await openSockets(spec, { spawn: this.#host.spawn, prefix: this.#toNetwork(processes) }, signal)
    undo.defer(() => closeSockets(sockets))
    signal.throwIfAborted()
    const storage = spec.limits.diskMb === undefined ? undefined : `/proc/${processes.monitor.pid}/root/sys/rw`
    const { spawn, memory } = this.#host.guardMemory(spec, cgroup, storage)
    const sandboxProcess = new BubblewrapSandboxProcess({
      spec,
      config,
      record,
      folder,
      processes,
      cgroup,
      memory,
      maxProcesses: this.#host.maxProcesses(spec, cgroup),
      sockets,
      seccompPrefix: seccompPrefix ?? [],
      user,
      home: INSIDE_HOME,
      below,
      snapshots: this.#host.snapshots,
      init,
      spawn,
      pipes: this.#host.pipes,
      discard: async () => {
        user?.release()
        await this.#host.discard(spec.id)
      },
    })
    undo.move()
    return this.#host.openSandbox(sandboxProcess)
  }

  list(): Promise<SandboxInfo[]> {
    return this.#host.records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.#host.records.load(id)
    if (record === undefined) return
    for (const ref of record.processes) await signalProcess(ref, 'SIGKILL')
    // Processes of commands, and of a start that was interrupted, are not in the record, but all have the sandbox's root
    // among their mounts.
    await endProcesses(`${rootName(record)} `, 'mounts')
    if (record.cgroup !== undefined) await new Cgroup(record.cgroup).remove()
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

  /** Returns the uppermost layer first. */
  async #layersOf(spec: SandboxSpec, tree: MachineTree, below: readonly string[]): Promise<string[]> {
    const bottom = spec.image ?? tree.base
    if ((await stat(bottom).catch(() => undefined))?.isDirectory() !== true)
      throw new RolloutError(
        'runtime.image-missing',
        `${bottom} is not a folder: an image must be the root folder of a tree`,
      )
    return [...below.map((name) => join(this.#host.snapshots.folderOf(name), 'layer')), bottom]
  }

  /** Starts the processes; none is left when this throws. */
  async #launch(
    spec: SandboxSpec,
    { record, folder, layers, tree, init, config, program, user }: LaunchOptions,
    signal: AbortSignal,
  ): Promise<BubblewrapProcesses> {
    const namespaces = ['--user', '--map-root-user', '--mount', '--propagation', 'private']
    const drop = user === undefined ? [] : ['setpriv', ...becomeOptions(user), 'unshare', ...namespaces]
    const network = spec.network.kind === 'open' ? [] : ['--unshare-net']
    const sandbox = bwrapLine(config, init, ['--unshare-ipc', '--unshare-uts', '--hostname', 'sandbox', ...network])
    const assemble = [...drop, '/bin/sh', '-c', addUserNamespace(), 'sh', ...sandbox]
    const outer = this.#isRoot ? ['--mount', '--propagation', 'private'] : namespaces
    const child = this.#host.spawner.spawn(
      'setpriv',
      ['--pdeathsig', 'KILL', 'unshare', ...outer, '/bin/sh', '-c', mountTree(), 'sh', ...assemble],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        env: {
          ...HOST_ENV,
          NAME: rootName(record),
          FOLDER: folder,
          PROGRAM_FOLDER: program.folder ?? '',
          HIDDEN: await realpath(this.#deps.dir),
          DISK_MB: spec.limits.diskMb === undefined ? '' : String(spec.limits.diskMb),
          WORKDIR: insidePath(spec.workdir),
          HOME_DIR: INSIDE_HOME,
          INSIDE_ID: String(INSIDE_ID),
          ...numbered('OWNED', (spec.folders ?? []).map(insidePath)),
          OWNED: String(spec.folders?.length ?? 0),
          OWNER: user === undefined ? '' : `${user.uid}:${user.shared}`,
          ...this.#quotas(user),
          // Layers of snapshots precede the bottom layer, whose files never belong to the shared user.
          ...mapVariables(user?.shared ?? 0, user?.uid ?? 0, user?.uid === user?.shared ? 0 : layers.length - 1),
          OVERLAY: this.#isRoot ? '' : ',userxattr',
          SEED: this.#isRoot && spec.image !== undefined && spec.snapshot === undefined ? '1' : '',
          RESOLVE: spec.network.kind === 'open' ? '1' : '',
          USER_NAMESPACES: this.#config.userNamespaces ? '1000' : '1',
          FOLDERS: spec.image === undefined ? tree.folders.join(' ') : '',
          ...numbered('LAYER', layers),
          LAYERS: String(layers.length),
          ...numbered(
            'SOURCE',
            // Without symbolic links, like the path of the hidden folder.
            await Promise.all(spec.mounts.map(({ source }) => resolveMountSource(source))),
          ),
          ...numbered(
            'TARGET',
            spec.mounts.map(({ target }) => insidePath(target)),
          ),
          ...numbered(
            'READONLY',
            spec.mounts.map(({ isReadOnly }) => (isReadOnly ? '1' : '0')),
          ),
          MOUNTS: String(spec.mounts.length),
        },
      },
    )
    try {
      const { users } = await readyLines(
        child,
        ['ready', 'users'],
        AbortSignal.any([signal, AbortSignal.timeout(START_MS)]),
      )
      const monitor = await identify(child.pid!)
      const first = await firstOf(child.pid!, Number(users))
      const holder = await identify(Number(users))
      if (monitor === undefined || first === undefined || holder === undefined)
        throw new Error('the process ended at once')
      return { child, monitor, first, holder }
    } catch (cause) {
      child.kill('SIGKILL')
      signal.throwIfAborted()
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.start-failed', `Cannot start sandbox ${spec.id}: ${reason}`, { cause })
    }
  }

  /** Returns undefined for our own user. */
  async #acquireUser(spec: SandboxSpec): Promise<SandboxUser | undefined> {
    if (!this.#isRoot) return undefined
    if (spec.snapshot === undefined) return this.#users.acquire(spec, false)
    this.#canMap ??= canMapLayers(this.#deps.dir, this.#config.uid)
    return this.#users.acquire(spec, await this.#canMap)
  }

  /** Variables of add-user-namespace.sh. */
  #quotas(user: SandboxUser | undefined): { QUOTAS: string; QUOTA_PREFIX: string } {
    const quotas = this.#host.quotasOf(user)
    const { pendingSignals: signals, messageQueueBytes: bytes } = quotas
    const limits = [
      ...(signals === undefined ? [] : [`--sigpending=${signals}:${signals}`]),
      ...(bytes === undefined ? [] : [`--msgqueue=${bytes}:${bytes}`]),
    ]
    return {
      QUOTAS: toSysctls(quotas).join(' '),
      QUOTA_PREFIX: limits.length === 0 ? '' : ['prlimit', ...limits].join(' '),
    }
  }

  /** Root can enter directly, and the helper must be able to read our program files. */
  #toNetwork({ monitor, first }: BubblewrapProcesses): string[] {
    const enter = ['nsenter', '--preserve-credentials', '-t', String(first.pid), '-n']
    return this.#isRoot ? enter : [...enterUsers(monitor), ...enter]
  }
}

interface LaunchOptions {
  record: SandboxRecord
  folder: string
  /** The uppermost first. */
  layers: readonly string[]
  tree: MachineTree
  /** Script of the first process. */
  init: string
  /** `program` is the path at which the assembled tree has it. */
  config: BubblewrapConfig
  program: ReachableProgram
  /** Undefined for our own user. */
  user: SandboxUser | undefined
}

/** Name of the root mount, by which the sandbox's processes are found. */
function rootName({ token }: SandboxRecord): string {
  return `polar-${token}`
}

function numbered(name: string, values: readonly string[]): Record<string, string> {
  return Object.fromEntries(values.map((value, index) => [`${name}_${index}`, value]))
}
