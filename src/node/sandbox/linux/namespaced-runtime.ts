import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import type { RuntimeCapabilities, RuntimeDeps, Sandbox, SandboxSpec } from '../runtimes/runtime.ts'
import { HOST_ENV, insidePath } from './files/paths.ts'
import type { SnapshotLimits } from './files/snapshots.ts'
import { HostRuntime } from './host-runtime.ts'
import { SandboxUsers, type SandboxUser } from './limits/sandbox-users.ts'
import { NamespacedSandbox, type Isolation } from './namespaced-sandbox.ts'
import { closeSockets, openSockets, proxyVariables } from './network/open-sockets.ts'
import type { SandboxRecord } from './records.ts'

export interface LaunchedAs {
  record: SandboxRecord
  folder: string
  /** Undefined for our own user. */
  user: SandboxUser | undefined
  /** Folders of the snapshots that the sandbox is based on, the uppermost first. */
  below: readonly string[]
}

/** Starts the processes of a sandbox; none is left when it throws. */
export type Launch = (as: LaunchedAs) => Promise<Isolation>

/** A runtime whose sandboxes are namespaces of this machine, assembled by a program without a daemon. */
export abstract class NamespacedRuntime extends HostRuntime {
  protected abstract readonly images: RuntimeCapabilities['images']
  protected readonly isRoot = process.getuid?.() === 0
  readonly #users: SandboxUsers

  constructor(config: SnapshotLimits & { uid: number }, deps: RuntimeDeps) {
    super(deps, config)
    this.#users = new SandboxUsers(config.uid)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      // Without control groups, the number of processes can still be limited, per user namespace.
      limits: [...new Set(['pids', 'diskMb', ...this.limits] as const)],
      images: this.images,
      supportsSnapshots: true,
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    await makeDirectories(this.deps.dir, 0o700)
    const launch = await this.prepare(spec, signal)
    const record = await this.records.create(spec, this.deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const user = this.isRoot ? this.#users.acquire(spec, await this.canMap(spec)) : undefined
    undo.defer(() => user?.release())
    const below = spec.snapshot === undefined ? [] : await this.snapshots.use(spec.snapshot)
    const cgroup = await this.createCgroup(spec, record)
    const folders = below.map((name) => this.snapshots.folderOf(name))
    const isolation = await launch({ record, folder: this.records.folderOf(spec.id), user, below: folders })
    undo.defer(() => isolation.end())
    record.processes = isolation.processes
    await this.records.write(record)
    const sockets = await openSockets(spec, { spawn: this.spawn, prefix: isolation.networkPrefix }, signal)
    undo.defer(() => closeSockets(sockets))
    signal.throwIfAborted()
    const sandbox = new NamespacedSandbox({
      ...this.hostedParts(spec, record, cgroup, isolation.memoryStorage),
      workdir: insidePath(spec.workdir),
      env: { ...isolation.env, ...proxyVariables(sockets), ...spec.env },
      socketPort: sockets.socketPort,
      closeSockets: () => closeSockets(sockets),
      isolation,
      user,
      maxProcesses: this.maxProcesses(spec, cgroup),
      below,
      snapshots: this.snapshots,
      discard: async () => {
        user?.release()
        await this.discard(spec.id)
      },
    })
    undo.move()
    return sandbox
  }

  /** Does what needs no record: fetches the image, finds programs. */
  protected abstract prepare(spec: SandboxSpec, signal: AbortSignal): Promise<Launch>

  /** Whether the snapshot of a sandbox can be mapped to a user of its own. */
  protected async canMap(_spec: SandboxSpec): Promise<boolean> {
    return false
  }

  /** Returns the reason if a program is missing. */
  protected async findMissing(tools: readonly string[], signal: AbortSignal): Promise<string | undefined> {
    for (const tool of tools) {
      const { exitCode } = await runProgram([tool, '--version'], { env: HOST_ENV, signal })
      if (exitCode !== 0) return `${tool} is not installed`
    }
    return undefined
  }

  /** Notes for operators about limits, disk and network. */
  protected get commonNotes(): string[] {
    return [
      this.limitsNote,
      'with a disk limit, written files are kept in memory; otherwise on disk',
      'allow uses a proxy for HTTP and CONNECT; open is the network of the machine, including its own services',
    ]
  }
}
