import type { ChildProcess } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, mkdir, readFile, realpath, rename, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { makeDirectories } from '../../lib/make-directories.ts'
import type { Plug } from '../../lib/plug.ts'
import { runProgram } from '../../lib/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { AllowProxy } from '../sandbox/allow-proxy.ts'
import { findCallFilter } from '../sandbox/call-filter.ts'
import { Cgroup, Cgroups } from '../sandbox/cgroups.ts'
import { createCleanSpawn, type CleanSpawn } from '../sandbox/clean-spawn.ts'
import { listenHere, listenInside, type DoorServer } from '../sandbox/doors.ts'
import { discardEntry, openEntry, type Entry, type Room } from '../sandbox/execution.ts'
import { HOST_PATH, HostedSandbox, joinLead, type Cell } from '../sandbox/hosted-sandbox.ts'
import { Pipes } from '../sandbox/pipes.ts'
import { childrenOf, endProcesses, identify, isAlive, signalProcess, type ProcessRef } from '../sandbox/processes.ts'
import { Records, removeTree, type SandboxRecord } from '../sandbox/records.ts'
import { ASSEMBLE, GATHER, INSIDE_HOME, prepareMachineTree, type MachineTree } from './bubblewrap-tree.ts'
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

const BubblewrapConfig = z.strictObject({
  kind: z.literal('bubblewrap'),
  program: z.string().default('bwrap').describe('The bwrap program'),
  visible: z
    .array(z.string().regex(/^(?:\/[\w.-]+)+$/))
    .default(['/usr', '/opt'])
    .describe('Folders of the machine that are visible, read-only, in a sandbox without an image'),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe('Whose processes they are on this machine when we are root; should own nothing else'),
  userNamespaces: z.boolean().default(false).describe('Whether a sandbox may make user namespaces of its own'),
})
type BubblewrapConfig = z.infer<typeof BubblewrapConfig>

export const bubblewrap: Plug<typeof BubblewrapConfig, RuntimeDeps, Runtime> = {
  config: BubblewrapConfig,
  create: (config, deps) => new BubblewrapRuntime(config, deps),
}

const HOST_ENV = { PATH: HOST_PATH }
/** What a first process does: nothing, but reap what others leave behind. Being first, nobody inside can end it. */
const HOLD = 'echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1'
/** The same for an image, whose programs may be of another make: the shell itself waits, for its child and all others. */
const HOLD_ANYWHERE = 'echo ready; exec >/dev/null 2>&1; while :; do sleep 1000000; done'
const INSIDE_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
/** Tells of the machine, not of the sandbox: names of keys, kernel memory, what every processor is about to do. */
const COVERED = ['/proc/keys', '/proc/key-users', '/proc/kcore', '/proc/timer_list']
const PROXY_PORTS = [3128, 3129] as const
const START_MS = 30_000
/** When the next room is made after one was taken: not while the command that took it starts. */
const SPARE_MS = 20
const REAP_MS = 500
/** How long a stop waits for the disk; what takes longer goes on without it. */
const REMOVE_MS = 1500

/**
 * Namespaces without a daemon. A sandbox is three processes that do nothing: bwrap, the first process of its process
 * namespace, and one that holds its user namespace. Commands are brought in from outside, each with a process namespace
 * of its own, so that ending the first process of that ends all of it. Everything ends when we do.
 *
 * There are two user namespaces. All others belong to the outer one, whose root is an unprivileged user of the machine:
 * ours, or `uid` when we are root. Commands run in the inner one, as a user without any capability, and cannot make a third.
 */
class BubblewrapRuntime implements Runtime {
  readonly kind = 'bubblewrap'
  readonly #config: BubblewrapConfig
  readonly #deps: RuntimeDeps
  readonly #cgroups = Cgroups.detect()
  readonly #isRoot = process.getuid?.() === 0
  readonly #records: Records
  readonly #pipes: Pipes
  readonly #spawn = createCleanSpawn()
  readonly #removing = new Set<Promise<void>>()
  #tree: Promise<MachineTree> | undefined
  #callFilter: ReturnType<typeof findCallFilter> | undefined

  constructor(config: BubblewrapConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#records = new Records(deps.dir)
    this.#pipes = new Pipes(deps.dir)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      // Without groups a count of processes can still be kept, per user namespace.
      limits: [...new Set(['pids', 'diskMb', ...(this.#cgroups?.limits ?? [])] as const)],
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
    const id = `check-${randomUUID()}`
    try {
      const spec: SandboxSpec = {
        id,
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
      if (exitCode !== 0) return { isUsable: false, reason: `a command in it ended with ${exitCode}` }
    } catch (error) {
      signal.throwIfAborted()
      return { isUsable: false, reason: error instanceof Error ? error.message : String(error) }
    }
    return {
      isUsable: true,
      notes: [
        this.#isRoot
          ? `we are root; sandboxes are user ${this.#config.uid}`
          : 'we are not root; sandboxes are our own user, without capabilities',
        this.#cgroups === undefined
          ? 'control groups are not ours to make: no limit on memory and cpu, and processes are counted by user namespace'
          : `limits by control groups ${this.#cgroups.version}: ${this.#cgroups.limits.join(', ')}`,
        (await this.#callFilter) === undefined
          ? 'system calls are not filtered, for want of perl: keyrings of the login are in reach'
          : 'system calls are filtered',
        'a disk limit keeps what is written in memory; without one it is on disk',
        'allow is a proxy for HTTP and CONNECT; open is the network of the machine, its own services included',
      ],
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    await makeDirectories(this.#deps.dir, 0o700)
    this.#tree ??= prepareMachineTree(this.#deps.dir, this.#config.visible)
    const tree = await this.#tree
    this.#callFilter ??= findCallFilter(HOST_ENV, { mayMount: this.#config.userNamespaces })
    const callFilter = await this.#callFilter
    const layers = await this.#layersOf(spec, tree)
    const record = await this.#records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const folder = this.#records.folderOf(spec.id)
    await mkdir(join(folder, 'rw'), { mode: 0o755 })
    const cgroup = await this.#cgroups?.create(`polar-${spec.id}`, spec.limits)
    if (cgroup !== undefined) {
      record.cgroup = cgroup.places
      await this.#records.write(record)
    }
    const processes = await this.#launch(spec, { record, folder, layers, tree }, signal)
    undo.defer(() => endSandbox(processes))
    record.processes = [processes.monitor, processes.first, processes.holder]
    await this.#records.write(record)
    const proxy = spec.network.kind === 'allow' ? new AllowProxy(spec.network.hosts) : undefined
    const doors = await this.#openDoors(spec, processes, proxy, signal)
    undo.defer(() => doors.servers.forEach((door) => door.close()))
    signal.throwIfAborted()
    const cell = new BubblewrapCell({
      spec,
      config: this.#config,
      record,
      folder,
      processes,
      cgroup,
      doors,
      callFilter: callFilter ?? [],
      uid: this.#isRoot ? this.#config.uid : undefined,
      snapshots: join(this.#deps.dir, 'snapshots'),
      spawn: this.#spawn,
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
    // Commands are not in the record, nor is anything of one whose start was cut short; but all see its root.
    await endProcesses(`${rootName(record)} `, 'mounts')
    if (record.cgroup !== undefined) await new Cgroup(record.cgroup).remove()
    await this.#records.remove(id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#removing)
    await this.#pipes[Symbol.asyncDispose]()
  }

  async #discard(id: string): Promise<void> {
    const removing = this.#records.remove(id).finally(() => this.#removing.delete(removing))
    this.#removing.add(removing)
    await Promise.race([removing, sleep(REMOVE_MS, undefined, { ref: false })])
  }

  async #layersOf(spec: SandboxSpec, tree: MachineTree): Promise<string[]> {
    const bottom = spec.image ?? tree.base
    if ((await stat(bottom).catch(() => undefined))?.isDirectory() !== true)
      throw new RolloutError('runtime.image-missing', `${bottom} is not a folder; an image is the root of a tree`)
    if (spec.snapshot === undefined) return [bottom]
    return [...(await layersOfSnapshot(join(this.#deps.dir, 'snapshots'), spec.snapshot)), bottom]
  }

  /** Brings up the processes; none of them is left when this throws. */
  async #launch(
    spec: SandboxSpec,
    { record, folder, layers, tree }: { record: SandboxRecord; folder: string; layers: string[]; tree: MachineTree },
    signal: AbortSignal,
  ): Promise<Processes> {
    const { uid } = this.#config
    const namespaces = ['--user', '--map-root-user', '--mount', '--propagation', 'private']
    const drop = ['setpriv', '--reuid', String(uid), '--regid', String(uid), '--clear-groups', 'unshare', ...namespaces]
    const network = spec.network.kind === 'open' ? [] : ['--unshare-net']
    const sandbox = bwrapLine(this.#config, spec, [
      '--unshare-ipc',
      '--unshare-uts',
      '--hostname',
      'sandbox',
      ...network,
    ])
    const assemble = [...(this.#isRoot ? drop : []), '/bin/sh', '-c', ASSEMBLE, 'sh', ...sandbox]
    const outer = this.#isRoot ? ['--mount', '--propagation', 'private'] : namespaces
    const child = this.#spawn(
      'setpriv',
      ['--pdeathsig', 'KILL', 'unshare', ...outer, '/bin/sh', '-c', GATHER, 'sh', ...assemble],
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        detached: true,
        env: {
          ...HOST_ENV,
          NAME: rootName(record),
          FOLDER: folder,
          HIDDEN: await realpath(this.#deps.dir),
          DISK_MB: spec.limits.diskMb === undefined ? '' : String(spec.limits.diskMb),
          WORKDIR: insidePath(spec.workdir),
          HOME_DIR: INSIDE_HOME,
          OWNER: this.#isRoot ? `${uid}:${uid}` : '',
          OVERLAY: this.#isRoot ? '' : ',userxattr',
          SEED: this.#isRoot && spec.image !== undefined && spec.snapshot === undefined ? '1' : '',
          RESOLVE: spec.network.kind === 'open' ? '1' : '',
          USER_NAMESPACES: this.#config.userNamespaces ? '1000' : '1',
          FOLDERS: spec.image === undefined ? tree.folders.join(' ') : '',
          ...numbered('LAYER', layers),
          LAYERS: String(layers.length),
          ...numbered(
            'SOURCE',
            // As the folder that is hidden is named: by no link.
            await Promise.all(spec.mounts.map(({ source }) => placeOf(source))),
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
      if (monitor === undefined || first === undefined || holder === undefined) throw new Error('it ended at once')
      return { child, monitor, first, holder }
    } catch (cause) {
      child.kill('SIGKILL')
      signal.throwIfAborted()
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.start-failed', `Cannot start sandbox ${spec.id}: ${reason}`, { cause })
    }
  }

  async #openDoors(
    spec: SandboxSpec,
    { monitor, first }: Processes,
    proxy: AllowProxy | undefined,
    signal: AbortSignal,
  ): Promise<Doors> {
    const { door } = spec
    if (spec.network.kind === 'open') {
      if (door === undefined) return { servers: [], doorPort: undefined, proxyPort: undefined }
      const server = await listenHere(door.port, (socket) => door.accept(socket))
      return { servers: [server], doorPort: server.port, proxyPort: undefined }
    }
    const proxyPort = proxy === undefined ? undefined : PROXY_PORTS.find((port) => port !== door?.port)
    const wanted = new Map<number, (socket: Socket) => void>()
    if (door !== undefined) wanted.set(door.port, (socket) => door.accept(socket))
    if (proxy !== undefined && proxyPort !== undefined) wanted.set(proxyPort, (socket) => proxy.accept(socket))
    const toNetwork = ['nsenter', '--preserve-credentials', '-t', String(first.pid), '-n']
    // Root may enter at once; and the helper must be able to read our own program's files.
    const lead = this.#isRoot ? toNetwork : [...enterUsers(monitor), ...toNetwork]
    const servers = wanted.size === 0 ? [] : await listenInside({ spawn: this.#spawn, lead }, wanted, signal)
    return { servers, doorPort: door?.port, proxyPort }
  }
}

interface Processes {
  /** bwrap itself, outside: it ends when the sandbox does. */
  child: ChildProcess
  monitor: ProcessRef
  /** The sandbox's first process. */
  first: ProcessRef
  /** Holds the inner user namespace. */
  holder: ProcessRef
}

interface Doors {
  servers: readonly DoorServer[]
  doorPort: number | undefined
  proxyPort: number | undefined
}

interface CellOptions {
  spec: SandboxSpec
  config: BubblewrapConfig
  record: SandboxRecord
  folder: string
  processes: Processes
  cgroup: Cgroup | undefined
  doors: Doors
  /** What a command line begins with to have less of the kernel; empty where there is no such thing. */
  callFilter: readonly string[]
  /** Who we become before we enter; undefined when we are that user already. */
  uid: number | undefined
  snapshots: string
  spawn: CleanSpawn
  pipes: Pipes
  discard(): Promise<void>
}

class BubblewrapCell implements Cell {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly doorPort: number | undefined
  readonly #options: CellOptions
  readonly env: Readonly<Record<string, string>>
  /** Made ahead, so that a command need not wait for it. */
  #spare: Promise<BubblewrapRoom> | undefined
  #isClosed = false

  constructor(options: CellOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = insidePath(options.spec.workdir)
    this.doorPort = options.doors.doorPort
    this.#options = options
    const { proxyPort } = options.doors
    const proxy = `http://127.0.0.1:${proxyPort}`
    this.env = {
      PATH: INSIDE_PATH,
      HOME: INSIDE_HOME,
      ...(proxyPort !== undefined && { HTTP_PROXY: proxy, HTTPS_PROXY: proxy, http_proxy: proxy, https_proxy: proxy }),
      ...options.spec.env,
    }
    this.#prepareSpare()
  }

  isAlive(): boolean {
    const { child } = this.#options.processes
    return child.exitCode === null && child.signalCode === null
  }

  async openRoom(): Promise<Room> {
    const spare = this.#spare
    // Taken at once: whoever comes next must not get the same.
    this.#spare = undefined
    const ready = await spare?.catch(() => undefined)
    const isUsable = ready !== undefined && ready.entry.child.exitCode === null && ready.entry.child.signalCode === null
    if (ready !== undefined && !isUsable) await discardRoom(ready)
    const room = isUsable ? ready : await this.#makeRoom()
    setTimeout(() => this.#prepareSpare(), SPARE_MS).unref()
    return room
  }

  toolLead(): readonly string[] {
    return this.#enter(this.#options.processes.first)
  }

  async countOutOfMemory(): Promise<number | undefined> {
    return this.#options.cgroup?.countOutOfMemory()
  }

  async stats(): Promise<SandboxStats> {
    const { monitor } = this.#options.processes
    const written = `/proc/${monitor.pid}/root/sys/rw`
    const { stdout } = await this.#runOutside(['du', '-sk', '--', written])
    const kilobytes = Number.parseInt(stdout, 10)
    const counted = await this.#options.cgroup?.stats()
    return { ...counted, ...(Number.isSafeInteger(kilobytes) && { diskBytes: kilobytes * 1024 }) }
  }

  async freeze(): Promise<void> {
    for (const door of this.#options.doors.servers) door.close()
  }

  async snapshot(name: string): Promise<void> {
    const { snapshots, processes, spec } = this.#options
    const place = join(snapshots, insideName(name))
    if ((await stat(place).catch(() => undefined)) !== undefined) return
    const draft = `${place}.${randomUUID()}`
    await makeDirectories(draft, 0o700)
    const upper = `/proc/${processes.monitor.pid}/root/sys/rw/upper`
    const { exitCode, stderr } = await this.#runOutside([
      'cp',
      '-a',
      '--reflink=auto',
      '--',
      upper,
      join(draft, 'layer'),
    ])
    if (exitCode !== 0) {
      await removeTree(draft)
      throw new RolloutError('runtime.copy-failed', `Cannot keep ${name}: ${stderr.trim().slice(-500)}`)
    }
    await removeTree(join(draft, 'layer', 'tmp'))
    await chmod(join(draft, 'layer'), 0o755)
    const below = spec.snapshot === undefined ? [] : await layersOfSnapshot(snapshots, spec.snapshot)
    await writeFile(join(draft, 'below.json'), JSON.stringify(below))
    await rename(draft, place).catch(async (error: unknown) => {
      await removeTree(draft)
      if ((await stat(place).catch(() => undefined)) === undefined) throw error
    })
  }

  async close(): Promise<void> {
    this.#isClosed = true
    const { processes, doors, cgroup } = this.#options
    for (const door of doors.servers) door.close()
    await endSandbox(processes)
    const spare = await this.#spare?.catch(() => undefined)
    if (spare !== undefined) await discardRoom(spare)
    await cgroup?.remove()
    await this.#options.discard()
  }

  #prepareSpare(): void {
    if (this.#isClosed || this.#spare !== undefined) return
    this.#spare = this.#makeRoom()
    this.#spare.catch(() => {})
  }

  /** A process namespace with its own view of /proc; all else is the sandbox's. */
  async #makeRoom(): Promise<BubblewrapRoom> {
    const { processes, config, spec, spawn } = this.#options
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
    const lead = [...this.#becomeUser(), ...enterUsers(processes.monitor), ...enter]
    const [file, ...args] = [...lead, ...bwrapLine(config, spec, [])]
    const child = spawn(file!, args, { stdio: ['ignore', 'pipe', 'pipe'], env: HOST_ENV, detached: true })
    try {
      await readyLines(child, ['ready'], AbortSignal.timeout(START_MS))
      const first = await firstOf(child.pid!)
      if (first === undefined) throw new Error('it ended at once')
      return new BubblewrapRoom(child, first, await this.#openEntry(first))
    } catch (cause) {
      child.kill('SIGKILL')
      throw new RolloutError('runtime.gone', `Nothing can be started in sandbox ${this.record.id}`, { cause })
    }
  }

  #openEntry(first: ProcessRef): Promise<Entry> {
    const { cgroup, spec, spawn, pipes } = this.#options
    const { pids } = spec.limits
    const byUser = cgroup?.places.pids === undefined && pids !== undefined
    const lead = [
      ...joinLead(cgroup?.joinFiles ?? []),
      ...(byUser ? ['prlimit', `--nproc=${pids}:${pids}`] : []),
      ...this.#enter(first),
    ]
    return openEntry(lead, { spawn, pipes, env: HOST_ENV, hasWaiter: true })
  }

  /** Leads from here to the namespaces of that process, as the user commands run as. */
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
    return [...this.#options.callFilter, ...this.#becomeUser(), ...enterUsers(processes.monitor), ...enter]
  }

  #becomeUser(): string[] {
    const { uid } = this.#options
    const drop = uid === undefined ? [] : ['--reuid', String(uid), '--regid', String(uid), '--clear-groups']
    return ['setpriv', ...drop, '--no-new-privs']
  }

  /** With the rights to read whatever the sandbox wrote, but on this side. */
  #runOutside(command: readonly string[]): ReturnType<typeof runProgram> {
    const { uid, processes } = this.#options
    const lead = uid === undefined ? enterUsers(processes.monitor) : []
    return runProgram([...lead, ...command] as unknown as [string, ...string[]], { env: HOST_ENV })
  }
}

/** In this order bwrap, the parent of both, reaps them and ends by itself; not every machine has somebody else to do it. */
async function endSandbox({ child, first, holder }: Pick<Processes, 'child' | 'first' | 'holder'>): Promise<void> {
  const ended = endOf(child)
  await signalProcess(holder, 'SIGKILL')
  while (await isAlive(holder)) await sleep(1)
  await signalProcess(first, 'SIGKILL')
  await Promise.race([ended, sleep(REAP_MS, undefined, { ref: false })])
  child.kill('SIGKILL')
  await ended
  // The first process is gone when all others are; until then the machine still has something of the sandbox.
  while (await isAlive(first)) await sleep(2)
}

class BubblewrapRoom implements Room {
  readonly entry: Entry
  readonly #first: ProcessRef
  readonly #ended: Promise<void>

  constructor(child: ChildProcess, first: ProcessRef, entry: Entry) {
    this.entry = entry
    this.#first = first
    this.#ended = endOf(child)
  }

  /** The first process of a process namespace is gone only after all others. */
  readonly close = async (): Promise<void> => {
    await signalProcess(this.#first, 'SIGKILL')
    await this.#ended
    while (await isAlive(this.#first)) await sleep(2)
  }
}

async function discardRoom(room: Room): Promise<void> {
  await room.close()
  discardEntry(room.entry)
}

function bwrapLine(
  { program, userNamespaces }: BubblewrapConfig,
  spec: SandboxSpec,
  namespaces: readonly string[],
): string[] {
  const options = ['--die-with-parent', '--as-pid-1', '--unshare-pid', ...namespaces]
  const tree = ['--bind', '/sys/root', '/', '--proc', '/proc', '--dev', '/dev', '--bind', '/sys/rw/shm', '/dev/shm']
  // Where part of /proc is covered, a user namespace inside could not have a /proc of its own.
  const covered = userNamespaces
    ? []
    : COVERED.filter((path) => existsSync(path)).flatMap((path) => ['--ro-bind', '/dev/null', path])
  const rights = [
    '--remount-ro',
    '/dev',
    '--chdir',
    '/',
    '--cap-drop',
    'ALL',
    '--clearenv',
    '--setenv',
    'PATH',
    INSIDE_PATH,
  ]
  const hold = ['/bin/sh', '-c', spec.image === undefined ? HOLD : HOLD_ANYWHERE]
  return [program, ...options, ...tree, ...covered, ...rights, ...hold]
}

/** Leads to the outer user namespace, where we are root. */
function enterUsers(monitor: ProcessRef): string[] {
  return ['nsenter', '--preserve-credentials', '-t', String(monitor.pid), '-U']
}

/** The first process of the namespace that a bwrap made, which has no other child but perhaps that one. */
async function firstOf(monitor: number, other?: number): Promise<ProcessRef | undefined> {
  const pid = (await childrenOf(monitor)).find((child) => child !== other)
  return pid === undefined ? undefined : identify(pid)
}

/** Waits until the program has printed a line for each word; gives what follows the words. */
function readyLines<Word extends string>(
  child: ChildProcess,
  words: readonly Word[],
  signal: AbortSignal,
): Promise<Record<Word, string>> {
  return new Promise((resolve, reject) => {
    const found = new Map<string, string>()
    let stderr = ''
    child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
    const lines = createInterface({ input: child.stdout! })
    lines.on('line', (line) => {
      const [word = '', rest = ''] = line.split(' ')
      found.set(word, rest)
      if (words.every((each) => found.has(each))) resolve(Object.fromEntries(found) as Record<Word, string>)
    })
    child.once('error', reject)
    child.once('exit', () => setImmediate(() => reject(new Error(stderr.trim() || 'it ended without a word'))))
    signal.addEventListener('abort', () => reject(new Error('it took too long')), { once: true })
    if (signal.aborted) reject(new Error('it took too long'))
  })
}

function endOf(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return Promise.resolve()
  return new Promise((resolve) => child.once('exit', () => resolve()))
}

async function layersOfSnapshot(snapshots: string, name: string): Promise<string[]> {
  const place = join(snapshots, insideName(name))
  const below = await readFile(join(place, 'below.json'), 'utf8').catch((cause: unknown) => {
    throw new RolloutError('runtime.image-missing', `There is no snapshot ${name} here`, { cause })
  })
  return [join(place, 'layer'), ...JSON.parse(below)]
}

function insideName(name: string): string {
  if (/^[A-Za-z0-9][\w-]{0,127}$/.test(name)) return name
  throw new RolloutError('runtime.unsupported', 'The name of a snapshot is letters, digits and dashes')
}

async function placeOf(source: string): Promise<string> {
  return realpath(source).catch((cause: unknown) => {
    throw new RolloutError('runtime.start-failed', `${source} cannot be mounted: it is not there`, { cause })
  })
}

/** Checked before it is put behind another path: it must not lead out of that. */
function insidePath(path: string): string {
  const parts = path.split('/').slice(1)
  const isFine =
    path.startsWith('/') && path !== '/' && !parts.some((part) => part === '..' || part === '.' || part === '')
  if (isFine && !/[\0\n]/.test(path)) return path
  throw new RolloutError('runtime.unsupported', `${JSON.stringify(path)} is not an absolute path in its simplest form`)
}

/** What its root is called in a list of mounts, so that whatever runs in it can be found. */
function rootName({ token }: SandboxRecord): string {
  return `polar-${token}`
}

function numbered(name: string, values: readonly string[]): Record<string, string> {
  return Object.fromEntries(values.map((value, index) => [`${name}_${index}`, value]))
}
