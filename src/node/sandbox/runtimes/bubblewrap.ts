import { mkdir, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import { isFolder } from '../../../lib/fs/file-exists.ts'
import type { Plug } from '../../../lib/plug.ts'
import { RolloutError } from '../../../model/failure.ts'
import { findSeccompPrefix } from '../linux/limits/seccomp-filter.ts'
import { trySandbox } from '../linux/check-sandbox.ts'
import { findInit, PORTABLE_INIT } from '../linux/init.ts'
import { canMapLayers, mapVariables } from '../linux/files/map-layers.ts'
import { HOST_ENV, INSIDE_HOME, INSIDE_ID, insidePath, resolveMountSource } from '../linux/files/paths.ts'
import { rootName } from '../linux/host-runtime.ts'
import { NamespacedRuntime, type Launch, type LaunchedAs } from '../linux/namespaced-runtime.ts'
import { identify } from '../linux/process/processes.ts'
import { readyLines, START_MS } from '../linux/process/started.ts'
import type { SandboxUser } from '../linux/limits/sandbox-users.ts'
import { toSysctls } from '../linux/limits/user-quotas.ts'
import { becomeOptions, toIsolation, type BubblewrapOptions, type BubblewrapProcesses } from './bubblewrap/isolation.ts'
import { BubblewrapConfig, bwrapLine, firstOf } from './bubblewrap/command-lines.ts'
import { locateProgram, type ReachableProgram } from './bubblewrap/program.ts'
import { addUserNamespace, mountTree, prepareMachineTree, type MachineTree } from './bubblewrap/machine-tree.ts'
import type { Runtime, RuntimeCheck, RuntimeDeps, SandboxSpec } from './runtime.ts'

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
class BubblewrapRuntime extends NamespacedRuntime {
  readonly kind = 'bubblewrap'
  protected readonly images = 'optional'
  readonly #config: BubblewrapConfig
  #tree: Promise<MachineTree> | undefined
  #seccompPrefix: ReturnType<typeof findSeccompPrefix> | undefined
  #init: Promise<string> | undefined
  #program: Promise<ReachableProgram> | undefined
  #canMap: Promise<boolean> | undefined

  constructor(config: BubblewrapConfig, deps: RuntimeDeps) {
    super(config, deps)
    this.#config = config
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program, uid } = this.#config
    const failure =
      (await this.findMissing([program, 'nsenter', 'unshare', 'setpriv', 'tar', 'mkfifo'], signal)) ??
      (await trySandbox(this, { now: this.deps.now() }, signal))
    if (failure !== undefined) return { isUsable: false, reason: failure }
    return {
      isUsable: true,
      notes: [
        this.isRoot
          ? `the node runs as root; each sandbox has a user of its own from ${uid} up, or ${uid} with a writable mount`
          : 'the node does not run as root; sandboxes run as its user, without capabilities, and have a share of its limits (inotify, signals, processes)',
        (await this.#seccompPrefix) === undefined
          ? 'system calls are not filtered, because perl is missing: sandboxes can access the keyrings of the login'
          : 'system calls are filtered',
        ...this.commonNotes,
      ],
    }
  }

  protected async prepare(spec: SandboxSpec, signal: AbortSignal): Promise<Launch> {
    this.#tree ??= prepareMachineTree(this.deps.dir, this.#config.visible)
    const tree = await this.#tree
    this.#seccompPrefix ??= findSeccompPrefix({ mayMount: this.#config.userNamespaces })
    const seccompPrefix = (await this.#seccompPrefix) ?? []
    this.#init ??= findInit()
    this.#program ??= locateProgram(this.#config.program)
    const program = await this.#program
    const config = { ...this.#config, program: program.path }
    // An image may have other implementations of these programs.
    const init = spec.image === undefined ? await this.#init : PORTABLE_INIT
    const bottom = spec.image ?? tree.base
    if (!(await isFolder(bottom)))
      throw new RolloutError(
        'runtime.image-missing',
        `${bottom} is not a folder: an image must be the root folder of a tree`,
      )
    return async (as) => {
      const layers = [...as.below.map((folder) => join(folder, 'layer')), bottom]
      await mkdir(join(as.folder, 'rw'), { mode: 0o755 })
      const options = { config, seccompPrefix, user: as.user, init }
      const processes = await this.#launch(spec, { ...as, layers, tree, program }, options, signal)
      return toIsolation(spec, options, processes)
    }
  }

  protected override async canMap({ snapshot }: SandboxSpec): Promise<boolean> {
    if (snapshot === undefined) return false
    return (this.#canMap ??= canMapLayers(this.deps.dir, this.#config.uid))
  }

  /** Starts the processes; none is left when this throws. */
  async #launch(
    spec: SandboxSpec,
    { record, folder, user, layers, tree, program }: LaunchOptions,
    { config, init }: BubblewrapOptions,
    signal: AbortSignal,
  ): Promise<BubblewrapProcesses> {
    const namespaces = ['--user', '--map-root-user', '--mount', '--propagation', 'private']
    const drop = user === undefined ? [] : ['setpriv', ...becomeOptions(user), 'unshare', ...namespaces]
    const network = spec.network.kind === 'open' ? [] : ['--unshare-net']
    const sandbox = bwrapLine(config, init, ['--unshare-ipc', '--unshare-uts', '--hostname', 'sandbox', ...network])
    const assemble = [...drop, '/bin/sh', '-c', addUserNamespace(), 'sh', ...sandbox]
    const outer = this.isRoot ? ['--mount', '--propagation', 'private'] : namespaces
    const child = this.spawner.spawn(
      'setpriv',
      ['--pdeathsig', 'KILL', 'unshare', ...outer, '/bin/sh', '-c', mountTree(), 'sh', ...assemble],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        env: {
          ...HOST_ENV,
          NAME: rootName(record),
          FOLDER: folder,
          PROGRAM_FOLDER: program.folder ?? '',
          HIDDEN: await realpath(this.deps.dir),
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
          OVERLAY: this.isRoot ? '' : ',userxattr',
          SEED: this.isRoot && spec.image !== undefined && spec.snapshot === undefined ? '1' : '',
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

  /** Variables of add-user-namespace.sh. */
  #quotas(user: SandboxUser | undefined): { QUOTAS: string; QUOTA_PREFIX: string } {
    const quotas = this.quotasOf(user)
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
}

interface LaunchOptions extends LaunchedAs {
  /** The uppermost first. */
  layers: readonly string[]
  tree: MachineTree
  program: ReachableProgram
}

function numbered(name: string, values: readonly string[]): Record<string, string> {
  return Object.fromEntries(values.map((value, index) => [`${name}_${index}`, value]))
}
