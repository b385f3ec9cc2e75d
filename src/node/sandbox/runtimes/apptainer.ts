import { realpath } from 'node:fs/promises'
import * as z from 'zod'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { Cgroup } from '../linux/limits/cgroups.ts'
import { tryOne } from '../linux/check-sandbox.ts'
import { isImageName } from '../linux/files/image-names.ts'
import { closeDoors, openDoors } from '../linux/network/open-sockets.ts'
import { HOST_ENV, INSIDE_ID } from '../linux/files/paths.ts'
import { Premises } from '../linux/host-runtime-state.ts'
import { endProcesses, signalProcess } from '../linux/process/processes.ts'
import { snapshotConfig } from '../linux/files/snapshots.ts'
import { type SandboxUser, UserNumbers } from '../linux/limits/user-numbers.ts'
import { ApptainerCell } from './apptainer/cell.ts'
import { FetchedImages } from './apptainer/fetched-images.ts'
import { endSandbox, imageAt, launch, layerOf, markOf, type Rights } from './apptainer/launch.ts'
import { findMachine } from './apptainer/steps.ts'
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
    .describe('How Apptainer is started: a program, and what comes before its own arguments'),
  image: z.string().optional().describe('SIF file, root folder or name of an image, where a task names none'),
  pull: z
    .enum(['never', 'missing'])
    .default('missing')
    .describe('When an image that is named by docker://, oras:// or docker-daemon: is fetched and unpacked'),
  dockerSocket: z
    .string()
    .default('/var/run/docker.sock')
    .describe("Unix socket of the Docker engine, or of Podman's service, that docker-daemon: names images of"),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe(
      'Owner of the files of snapshots when we are root, and first of the 17408 user numbers that sandboxes run as; these users should own nothing else',
    ),
  ...snapshotConfig,
})
type ApptainerConfig = z.infer<typeof ApptainerConfig>

export const apptainer: Plug<typeof ApptainerConfig, RuntimeDeps, Runtime> = {
  config: ApptainerConfig,
  create: (config, deps) => new ApptainerRuntime(config, deps),
}

/**
 * Apptainer puts the sandbox together: the image, a layer to write to, mounts, namespaces. It has no daemon; one process of
 * it stays for each sandbox, and the sandbox ends with that. Its own `exec` is not used again: of a client that is killed,
 * the command inside lives on. Commands are brought in from outside, each with a process namespace of its own, so that
 * ending the first process of that ends all of it, and in a user namespace where they are somebody without capabilities.
 */
class ApptainerRuntime implements Runtime {
  readonly kind = 'apptainer'
  readonly #config: ApptainerConfig
  readonly #deps: RuntimeDeps
  readonly #premises: Premises
  readonly #images: FetchedImages
  readonly #users: UserNumbers

  constructor(config: ApptainerConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#images = new FetchedImages({ ...config, dir: deps.dir })
    this.#deps = deps
    this.#premises = new Premises(deps, config)
    this.#users = new UserNumbers(config.uid)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      // Without groups a count of processes can still be kept, per user namespace.
      limits: [...new Set(['pids', 'diskMb', ...this.#premises.limits] as const)],
      images: 'required',
      supportsSnapshots: true,
    }
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program, image, uid } = this.#config
    const machine = findMachine()
    if (machine === undefined) return { isUsable: false, reason: `its steps are not known on ${process.arch}` }
    for (const tool of [
      'perl',
      'nsenter',
      'tar',
      'mkfifo',
      ...(this.#premises.cgroups === undefined ? ['prlimit'] : []),
    ]) {
      const { exitCode } = await runProgram([tool, '--version'], { env: HOST_ENV, signal })
      if (exitCode !== 0) return { isUsable: false, reason: `${tool} is not installed` }
    }
    const asked = await runProgram([...program, 'version'], { env: HOST_ENV, signal })
    if (asked.exitCode !== 0) {
      const said = asked.stderr.trim().split('\n').at(-1) || `it ended with ${asked.exitCode}`
      const reason = said.includes('ENOENT') ? 'it is not installed; install it, or set runtime.program' : said
      return { isUsable: false, reason: `${program.join(' ')} cannot be run: ${reason}` }
    }
    const notes = [
      `apptainer ${asked.stdout.trim()}`,
      process.getuid?.() === 0
        ? `we are root; the commands of each sandbox have a user of their own from ${uid} up, or ${uid} with a snapshot or a writable mount`
        : 'we are not root; sandboxes are our own user, without capabilities, keep its groups, and have a share of its limits (inotify, signals, processes)',
      this.#premises.limitsNote,
      'a disk limit keeps what is written in memory; without one it is on disk',
      'allow is a proxy for HTTP and CONNECT; open is the network of the machine, its own services included',
    ]
    if (image === undefined)
      return { isUsable: true, notes: [...notes, 'none was started: set runtime.image to have that tried'] }
    const failure = await tryOne(this, { image, now: this.#deps.now() }, signal)
    return failure === undefined ? { isUsable: true, notes } : { isUsable: false, reason: failure }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const image = await this.#imageOf(spec, signal)
    await makeDirectories(this.#deps.dir, 0o700)
    const record = await this.#premises.records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const user = process.getuid?.() === 0 ? this.#users.take(spec, false) : undefined
    undo.defer(() => user?.giveBack())
    const rights = this.#rights(user)
    const below = spec.snapshot === undefined ? [] : await this.#premises.snapshots.use(spec.snapshot)
    const layers = await Promise.all(below.map((name) => realpath(layerOf(this.#premises.snapshots.folderOf(name)))))
    const folder = this.#premises.records.folderOf(spec.id)
    const cgroup = await this.#premises.createCgroup(spec, record)
    const hidden = await realpath(this.#deps.dir)
    const { program } = this.#config
    const options = {
      program,
      rights,
      image,
      layers,
      record,
      folder: await realpath(folder),
      hidden,
      quotas: this.#premises.quotasOf(user),
      spawn: this.#premises.spawn,
    }
    const { processes, env } = await launch(spec, options, signal)
    undo.defer(() => endSandbox(processes))
    record.processes = [processes.first, processes.monitor, processes.users, ...processes.helpers]
    await this.#premises.records.write(record)
    const users = rights.isRoot ? [] : ['-U', '--preserve-credentials']
    const lead = ['nsenter', '-t', String(processes.first.pid), ...users, '-n']
    const doors = await openDoors(spec, { spawn: this.#premises.spawn, lead }, signal)
    undo.defer(() => closeDoors(doors))
    signal.throwIfAborted()
    const { spawn, memory } = this.#premises.guardMemory(spec, cgroup, `/proc/${processes.first.pid}/root/dev/shm`)
    const cell = new ApptainerCell({
      spec,
      user,
      rights,
      record,
      folder: options.folder,
      processes,
      env,
      cgroup,
      memory,
      maxProcesses: this.#premises.maxProcesses(spec, cgroup),
      doors,
      below,
      snapshots: this.#premises.snapshots,
      spawn,
      pipes: this.#premises.pipes,
      discard: async () => {
        user?.giveBack()
        await this.#premises.discard(spec.id)
      },
    })
    undo.move()
    return this.#premises.openSandbox(cell)
  }

  list(): Promise<SandboxInfo[]> {
    return this.#premises.records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.#premises.records.load(id)
    if (record === undefined) return
    for (const ref of record.processes) await signalProcess(ref, 'SIGKILL')
    // Commands are not in the record, nor is anything of one whose start was cut short; but all see its mounts.
    await endProcesses(`${markOf(record)} `, 'mounts')
    if (record.cgroup !== undefined) await new Cgroup(record.cgroup).remove()
    await this.#premises.records.remove(id)
  }

  removeOldSnapshots(): Promise<string[]> {
    return this.#premises.snapshots.prune()
  }

  removeSnapshot(name: string): Promise<void> {
    return this.#premises.snapshots.remove(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#premises[Symbol.asyncDispose]()
  }

  async #imageOf(spec: SandboxSpec, signal: AbortSignal): Promise<string> {
    const given = spec.image ?? this.#config.image
    if (given !== undefined) return imageAt(isImageName(given) ? await this.#images.require(given, signal) : given)
    throw new RolloutError('runtime.unsupported', 'Apptainer needs an image; name one, or set runtime.image')
  }

  #rights(user: SandboxUser | undefined): Rights {
    const machine = findMachine()
    const own = process.getuid?.()
    if (machine === undefined || own === undefined)
      throw new RolloutError('runtime.unsupported', `Apptainer's sandboxes are not known on ${process.arch}`)
    if (user !== undefined)
      return { machine, isRoot: true, owner: user.uid, inside: { user: INSIDE_ID, group: INSIDE_ID } }
    return { machine, isRoot: false, owner: own, inside: { user: own, group: process.getgid?.() ?? own } }
  }
}
