import { realpath } from 'node:fs/promises'
import * as z from 'zod'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { Cgroup } from '../linux/limits/cgroups.ts'
import { trySandbox } from '../linux/check-sandbox.ts'
import { isImageName } from '../linux/files/image-names.ts'
import { closeSockets, openSockets } from '../linux/network/open-sockets.ts'
import { HOST_ENV, INSIDE_ID } from '../linux/files/paths.ts'
import { HostRuntimeState } from '../linux/host-runtime-state.ts'
import { endProcesses, signalProcess } from '../linux/process/processes.ts'
import { snapshotConfig } from '../linux/files/snapshots.ts'
import { type SandboxUser, SandboxUsers } from '../linux/limits/sandbox-users.ts'
import { ApptainerSandboxProcess } from './apptainer/sandbox-process.ts'
import { FetchedImages } from './apptainer/fetched-images.ts'
import { endApptainer, imageAt, launch, layerOf, markOf, type Privileges } from './apptainer/launch.ts'
import { findArchitecture } from './apptainer/steps.ts'
import type {
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxSpec,
} from './runtime.ts'

const ApptainerConfig = z.strictObject({
  kind: z.literal('apptainer'),
  program: z
    .tuple([z.string().min(1)], z.string())
    .default(['apptainer'])
    .describe('Command that starts Apptainer: a program and its first arguments'),
  image: z.string().optional().describe('SIF file, root folder or name of the image of tasks that name none'),
  pull: z
    .enum(['never', 'missing'])
    .default('missing')
    .describe('When to fetch and unpack an image named by docker://, oras:// or docker-daemon:'),
  dockerSocket: z
    .string()
    .default('/var/run/docker.sock')
    .describe("Unix socket of the Docker engine, or of Podman's service, for images named by docker-daemon:"),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe(
      'If the node runs as root: owner of the files of snapshots, and first of the 17408 user ids that sandboxes run as; these users should own no other files',
    ),
  ...snapshotConfig,
})
type ApptainerConfig = z.infer<typeof ApptainerConfig>

export const apptainer: Plug<typeof ApptainerConfig, RuntimeDeps, Runtime> = {
  config: ApptainerConfig,
  create: (config, deps) => new ApptainerRuntime(config, deps),
}

/**
 * Apptainer assembles the sandbox: image, writable layer, mounts, namespaces. It has no daemon; each sandbox has one
 * Apptainer process and ends with it. Its `exec` is not used for commands: when the client is killed, the command
 * inside survives. Commands enter from outside, each in a process namespace of its own, so that killing the first
 * process of that namespace ends all of it, and in a user namespace without capabilities.
 */
class ApptainerRuntime implements Runtime {
  readonly kind = 'apptainer'
  readonly #config: ApptainerConfig
  readonly #deps: RuntimeDeps
  readonly #host: HostRuntimeState
  readonly #images: FetchedImages
  readonly #users: SandboxUsers

  constructor(config: ApptainerConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#images = new FetchedImages({ ...config, dir: deps.dir })
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
      images: 'required',
      supportsSnapshots: true,
    }
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program, image, uid } = this.#config
    const architecture = findArchitecture()
    if (architecture === undefined)
      return { isUsable: false, reason: `the architecture ${process.arch} is not supported` }
    for (const tool of ['perl', 'nsenter', 'tar', 'mkfifo', ...(this.#host.cgroups === undefined ? ['prlimit'] : [])]) {
      const { exitCode } = await runProgram([tool, '--version'], { env: HOST_ENV, signal })
      if (exitCode !== 0) return { isUsable: false, reason: `${tool} is not installed` }
    }
    const version = await runProgram([...program, 'version'], { env: HOST_ENV, signal })
    if (version.exitCode !== 0) {
      const lastLine = version.stderr.trim().split('\n').at(-1) || `exit code ${version.exitCode}`
      const reason = lastLine.includes('ENOENT') ? 'it is not installed: install it, or set runtime.program' : lastLine
      return { isUsable: false, reason: `${program.join(' ')} cannot be started: ${reason}` }
    }
    const notes = [
      `apptainer ${version.stdout.trim()}`,
      process.getuid?.() === 0
        ? `the node runs as root; each sandbox has a user of its own from ${uid} up, or ${uid} with a snapshot or a writable mount`
        : 'the node does not run as root; sandboxes run as its user, without capabilities, keep its groups, and have a share of its limits (inotify, signals, processes)',
      this.#host.limitsNote,
      'with a disk limit, written files are kept in memory; otherwise on disk',
      'allow uses a proxy for HTTP and CONNECT; open is the network of the machine, including its own services',
    ]
    if (image === undefined)
      return { isUsable: true, notes: [...notes, 'no sandbox was started: set runtime.image to test one'] }
    const failure = await trySandbox(this, { image, now: this.#deps.now() }, signal)
    return failure === undefined ? { isUsable: true, notes } : { isUsable: false, reason: failure }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const image = await this.#imageOf(spec, signal)
    await makeDirectories(this.#deps.dir, 0o700)
    const record = await this.#host.records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const user = process.getuid?.() === 0 ? this.#users.acquire(spec, false) : undefined
    undo.defer(() => user?.release())
    const privileges = this.#privilegesOf(user)
    const below = spec.snapshot === undefined ? [] : await this.#host.snapshots.use(spec.snapshot)
    const layers = await Promise.all(below.map((name) => realpath(layerOf(this.#host.snapshots.folderOf(name)))))
    const folder = this.#host.records.folderOf(spec.id)
    const cgroup = await this.#host.createCgroup(spec, record)
    const hidden = await realpath(this.#deps.dir)
    const { program } = this.#config
    const options = {
      program,
      privileges,
      image,
      layers,
      record,
      folder: await realpath(folder),
      hidden,
      quotas: this.#host.quotasOf(user),
      spawn: this.#host.spawn,
    }
    const { processes, env } = await launch(spec, options, signal)
    undo.defer(() => endApptainer(processes))
    record.processes = [processes.first, processes.monitor, processes.users, ...processes.helpers]
    await this.#host.records.write(record)
    const users = privileges.isRoot ? [] : ['-U', '--preserve-credentials']
    const prefix = ['nsenter', '-t', String(processes.first.pid), ...users, '-n']
    const sockets = await openSockets(spec, { spawn: this.#host.spawn, prefix }, signal)
    undo.defer(() => closeSockets(sockets))
    signal.throwIfAborted()
    const { spawn, memory } = this.#host.guardMemory(spec, cgroup, `/proc/${processes.first.pid}/root/dev/shm`)
    const sandboxProcess = new ApptainerSandboxProcess({
      spec,
      user,
      privileges,
      record,
      folder: options.folder,
      processes,
      env,
      cgroup,
      memory,
      maxProcesses: this.#host.maxProcesses(spec, cgroup),
      sockets,
      below,
      snapshots: this.#host.snapshots,
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
    // Processes of commands, and of a start that was interrupted, are not in the record, but all have the sandbox's mounts.
    await endProcesses(`${markOf(record)} `, 'mounts')
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

  async #imageOf(spec: SandboxSpec, signal: AbortSignal): Promise<string> {
    const image = spec.image ?? this.#config.image
    if (image !== undefined) return imageAt(isImageName(image) ? await this.#images.require(image, signal) : image)
    throw new RolloutError(
      'runtime.unsupported',
      'Apptainer needs an image: name one in the task, or set runtime.image',
    )
  }

  #privilegesOf(user: SandboxUser | undefined): Privileges {
    const architecture = findArchitecture()
    const own = process.getuid?.()
    if (architecture === undefined || own === undefined)
      throw new RolloutError('runtime.unsupported', `Apptainer is not supported on the architecture ${process.arch}`)
    if (user !== undefined)
      return { architecture, isRoot: true, owner: user.uid, inside: { user: INSIDE_ID, group: INSIDE_ID } }
    return { architecture, isRoot: false, owner: own, inside: { user: own, group: process.getgid?.() ?? own } }
  }
}
