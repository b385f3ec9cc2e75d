import { realpath } from 'node:fs/promises'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { makeDirectories } from '../../lib/make-directories.ts'
import type { Plug } from '../../lib/plug.ts'
import { runProgram } from '../../lib/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { AllowProxy } from '../sandbox/allow-proxy.ts'
import { Cgroup, Cgroups } from '../sandbox/cgroups.ts'
import { checkId, removeLeftChecks } from '../sandbox/check-sandbox.ts'
import { createCleanSpawn } from '../sandbox/clean-spawn.ts'
import { Spawner } from '../sandbox/spawner.ts'
import { listenHere, listenInside } from '../sandbox/doors.ts'
import { HostedSandbox } from '../sandbox/hosted-sandbox.ts'
import { Pipes } from '../sandbox/pipes.ts'
import { endProcesses, signalProcess } from '../sandbox/processes.ts'
import { Records } from '../sandbox/records.ts'
import { snapshotConfig, Snapshots } from '../sandbox/snapshots.ts'
import { ApptainerCell, type Doors } from './apptainer/cell.ts'
import {
  endSandbox,
  HOST_ENV,
  imageAt,
  launch,
  layerOf,
  markOf,
  START_MS,
  type Processes,
  type Rights,
} from './apptainer/launch.ts'
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
  image: z.string().optional().describe('SIF file, or root folder of an image, where a task names none'),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe('Whose processes they are on this machine when we are root; should own nothing else'),
  ...snapshotConfig,
})
type ApptainerConfig = z.infer<typeof ApptainerConfig>

export const apptainer: Plug<typeof ApptainerConfig, RuntimeDeps, Runtime> = {
  config: ApptainerConfig,
  create: (config, deps) => new ApptainerRuntime(config, deps),
}

/** The user commands see when we are root. Never 0: harnesses refuse it. */
const INSIDE_ID = 1000
const PROXY_PORTS = [3128, 3129] as const
/** How long a stop waits for the disk; what takes longer goes on without it. */
const REMOVE_MS = 1500

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
  readonly #cgroups = Cgroups.detect()
  readonly #records: Records
  readonly #snapshots: Snapshots
  readonly #pipes: Pipes
  readonly #spawn = createCleanSpawn()
  readonly #spawner = new Spawner()
  readonly #removing = new Set<Promise<void>>()

  constructor(config: ApptainerConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#records = new Records(deps.dir)
    const inUse = () => this.#records.snapshotsInUse()
    this.#snapshots = new Snapshots(deps.dir, config, { now: () => deps.now(), inUse })
    this.#pipes = new Pipes(deps.dir)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      // Without groups a count of processes can still be kept, per user namespace.
      limits: [...new Set(['pids', 'diskMb', ...(this.#cgroups?.limits ?? [])] as const)],
      images: 'required',
      supportsSnapshots: true,
    }
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program, image, uid } = this.#config
    const machine = findMachine()
    if (machine === undefined) return { isUsable: false, reason: `its steps are not known on ${process.arch}` }
    for (const tool of ['perl', 'nsenter', 'tar', 'mkfifo', ...(this.#cgroups === undefined ? ['prlimit'] : [])]) {
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
        ? `we are root; commands are user ${uid}`
        : 'we are not root; sandboxes are our own user, without capabilities, and keep its groups',
      this.#cgroups === undefined
        ? 'control groups are not ours to make: no limit on memory and cpu, and processes are counted by user namespace'
        : `limits by control groups ${this.#cgroups.version}: ${this.#cgroups.limits.join(', ')}`,
      'a disk limit keeps what is written in memory; without one it is on disk',
      'allow is a proxy for HTTP and CONNECT; open is the network of the machine, its own services included',
    ]
    if (image === undefined)
      return { isUsable: true, notes: [...notes, 'none was started: set runtime.image to have that tried'] }
    const failure = await this.#tryOne(image, signal)
    return failure === undefined ? { isUsable: true, notes } : { isUsable: false, reason: failure }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const image = await this.#imageOf(spec)
    const rights = this.#rights()
    await makeDirectories(this.#deps.dir, 0o700)
    const record = await this.#records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const below = spec.snapshot === undefined ? [] : await this.#snapshots.use(spec.snapshot)
    const layers = await Promise.all(below.map((name) => realpath(layerOf(this.#snapshots.folderOf(name)))))
    const folder = this.#records.folderOf(spec.id)
    const cgroup = await this.#cgroups?.create(`polar-${spec.id}`, spec.limits, async (places) => {
      record.cgroup = places
      await this.#records.write(record)
    })
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
      spawn: this.#spawn,
    }
    const { processes, env } = await launch(spec, options, signal)
    undo.defer(() => endSandbox(processes))
    record.processes = [processes.first, processes.monitor, processes.users, ...processes.helpers]
    await this.#records.write(record)
    const doors = await this.#openDoors(spec, processes, signal)
    undo.defer(() => doors.servers.forEach((door) => door.close()))
    signal.throwIfAborted()
    const cell = new ApptainerCell({
      spec,
      rights,
      record,
      folder: options.folder,
      processes,
      env,
      cgroup,
      doors,
      below,
      snapshots: this.#snapshots,
      spawn: this.#spawner.spawn,
      pipes: this.#pipes,
      discard: () => this.#discard(spec.id),
    })
    undo.move()
    return new HostedSandbox(cell, { records: this.#records, spawn: this.#spawn, now: () => this.#deps.now() })
  }

  list(): Promise<SandboxInfo[]> {
    return this.#records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.#records.load(id)
    if (record === undefined) return
    for (const ref of record.processes) await signalProcess(ref, 'SIGKILL')
    // Commands are not in the record, nor is anything of one whose start was cut short; but all see its mounts.
    await endProcesses(`${markOf(record)} `, 'mounts')
    if (record.cgroup !== undefined) await new Cgroup(record.cgroup).remove()
    await this.#records.remove(id)
  }

  removeOldSnapshots(): Promise<string[]> {
    return this.#snapshots.prune()
  }

  removeSnapshot(name: string): Promise<void> {
    return this.#snapshots.remove(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#removing)
    await this.#snapshots[Symbol.asyncDispose]()
    await this.#pipes[Symbol.asyncDispose]()
    await this.#spawner[Symbol.asyncDispose]()
  }

  async #discard(id: string): Promise<void> {
    const removing = this.#records.remove(id).finally(() => this.#removing.delete(removing))
    this.#removing.add(removing)
    await Promise.race([removing, sleep(REMOVE_MS, undefined, { ref: false })])
  }

  /** What went wrong with a sandbox that does nothing. */
  async #tryOne(image: string, signal: AbortSignal): Promise<string | undefined> {
    try {
      await removeLeftChecks(this)
      const spec: SandboxSpec = {
        id: checkId(),
        image,
        workdir: '/work',
        env: {},
        limits: {},
        network: { kind: 'none' },
        mounts: [],
        labels: {},
        leaseUntil: this.#deps.now() + START_MS,
      }
      await using sandbox = await this.start(spec, signal)
      const execution = await sandbox.exec({ command: ['true'], leftovers: 'end', timeoutMs: START_MS })
      const { exitCode } = await execution.result
      return exitCode === 0 ? undefined : `a command in it ended with ${exitCode}`
    } catch (error) {
      signal.throwIfAborted()
      return error instanceof Error ? error.message : String(error)
    }
  }

  async #imageOf(spec: SandboxSpec): Promise<string> {
    const path = spec.image ?? this.#config.image
    if (path !== undefined) return imageAt(path)
    throw new RolloutError('runtime.unsupported', 'Apptainer needs an image; name one, or set runtime.image')
  }

  #rights(): Rights {
    const machine = findMachine()
    const own = process.getuid?.()
    if (machine === undefined || own === undefined)
      throw new RolloutError('runtime.unsupported', `Apptainer's sandboxes are not known on ${process.arch}`)
    const isRoot = own === 0
    if (isRoot) return { machine, isRoot, owner: this.#config.uid, inside: { user: INSIDE_ID, group: INSIDE_ID } }
    return { machine, isRoot, owner: own, inside: { user: own, group: process.getgid?.() ?? own } }
  }

  async #openDoors(spec: SandboxSpec, { first }: Processes, signal: AbortSignal): Promise<Doors> {
    const { door, network } = spec
    if (network.kind === 'open') {
      if (door === undefined) return { servers: [], doorPort: undefined, proxyPort: undefined }
      const server = await listenHere(door.port, (socket) => door.accept(socket))
      return { servers: [server], doorPort: server.port, proxyPort: undefined }
    }
    const proxy = network.kind === 'allow' ? new AllowProxy(network.hosts) : undefined
    const proxyPort = proxy === undefined ? undefined : PROXY_PORTS.find((port) => port !== door?.port)
    const wanted = new Map<number, (socket: Socket) => void>()
    if (door !== undefined) wanted.set(door.port, (socket) => door.accept(socket))
    if (proxy !== undefined && proxyPort !== undefined) wanted.set(proxyPort, (socket) => proxy.accept(socket))
    const users = this.#rights().isRoot ? [] : ['-U', '--preserve-credentials']
    const lead = ['nsenter', '-t', String(first.pid), ...users, '-n']
    const servers = wanted.size === 0 ? [] : await listenInside({ spawn: this.#spawn, lead }, wanted, signal)
    return { servers, doorPort: door?.port, proxyPort }
  }
}
