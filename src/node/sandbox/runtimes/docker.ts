import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import type { Plug } from '../../../lib/plug.ts'
import { parseJson } from '../../../lib/json/json-text.ts'
import { RolloutError } from '../../../model/failure.ts'
import { planSockets, proxyVariables } from '../linux/network/open-sockets.ts'
import { createCleanSpawn } from '../linux/process/clean-spawn.ts'
import { listenInside, type SocketServer, type SocketHandler } from '../linux/network/sandbox-sockets.ts'
import { signalProcess } from '../linux/process/processes.ts'
import { Records } from '../linux/records.ts'
import { StartPacer } from '../linux/start-pacer.ts'
import { snapshotConfig, Snapshots } from '../linux/files/snapshots.ts'
import { ForwardedSockets } from './docker/forwarded-sockets.ts'
import { ContainerEngine, ContainerEngineError, ignoreStatus } from './docker/container-engine.ts'
import { ContainerFiles } from './docker/files.ts'
import { CgroupTracker } from './docker/cgroup-tracker.ts'
import { Images, type Image } from './docker/images.ts'
import { runInside } from './docker/inside.ts'
import { TreeTracker } from './docker/tree-tracker.ts'
import type { ProcessTracker } from './docker/process-tracker.ts'
import { DockerSandbox, type ImageTag } from './docker/sandbox.ts'
import { writePodmanProfile } from './docker/seccomp.ts'
import type {
  Mount,
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxLimits,
  SandboxSpec,
} from './runtime.ts'

const DockerConfig = z.strictObject({
  kind: z.literal('docker'),
  socket: z.string().default('/var/run/docker.sock').describe("Unix socket of Docker, or of Podman's service"),
  image: z.string().optional().describe('Image of tasks that name none'),
  pull: z.enum(['never', 'missing', 'always']).default('missing').describe('When to pull an image from its registry'),
  logins: z
    .array(z.strictObject({ registry: z.string(), username: z.string(), password: z.string() }))
    .default([])
    .describe('Credentials for registries; docker.io is the registry of names without one'),
  user: z
    .string()
    .regex(/^(?:\d+(?::\d+)?|image)$/)
    .default('1000:1000')
    .describe("User, or user:group, of commands, as numbers; `image` for the image's user, which may be root"),
  readOnly: z
    .boolean()
    .default(false)
    .describe('Whether only the workdir and folders in memory such as /tmp are writable; disables snapshots'),
  capabilities: z.array(z.string()).default([]).describe('Linux capabilities to keep; all others are dropped'),
  network: z.string().default('bridge').describe('Network of the engine for sandboxes with an open network'),
  userNamespace: z
    .string()
    .regex(/^(?:auto|keep-id|private|host)(?::.*)?$/)
    .optional()
    .describe(
      "User namespace mode of the engine. `auto` of Podman gives each container users of its own, so that per-user limits of the kernel (inotify, signals) are not shared; absent: the engine's default",
    ),
  nofile: z.int().positive().default(16_384).describe('Limit of open files per process'),
  nproc: z.int().positive().default(32_768).describe('Limit of processes per user, over all containers'),
  diskQuota: z
    .boolean()
    .default(false)
    .describe("Whether the engine's storage supports disk limits: overlay on xfs with pquota, btrfs, zfs"),
  startsPerSecond: z.number().positive().default(10).describe('Limit of container starts per second'),
  reach: z
    .enum(['host', 'inside'])
    .optional()
    .describe(
      'Whether the node enters containers from this machine (`host`) or through the engine (`inside`); absent: `host` if it runs as root',
    ),
  ...snapshotConfig,
})
type DockerConfig = z.infer<typeof DockerConfig>

export const docker: Plug<typeof DockerConfig, RuntimeDeps, Runtime> = {
  config: DockerConfig,
  create: (config, deps) => new DockerRuntime(config, deps),
}

/**
 * Command of the first process, which only reaps orphans. No process inside can kill it, because it is process 1 and
 * belongs to another user than commands.
 */
const INIT = ['/bin/sh', '-c', 'while :; do sleep 2147483647 & wait; done']
const LABEL = 'polar.sandbox'
const CPU_PERIOD_US = 100_000
const REMOVE_ATTEMPTS = 20
const SANDBOX_OOM_SCORE = 1000
/** Default of container engines. */
const SHARED_MEMORY_BYTES = 64 * 1024 * 1024
const KERNEL_LIMITS = ['cpus', 'memoryMb', 'pids'] as const

const Created = z.looseObject({ Id: z.string() })
const Inspected = z.looseObject({ State: z.looseObject({ Pid: z.int(), Running: z.boolean() }) })
const Listed = z.array(z.looseObject({ Labels: z.record(z.string(), z.string()).nullish(), Created: z.number() }))
const Label = z.object({ id: z.string(), leaseUntil: z.number(), labels: z.record(z.string(), z.string()) })
const Version = z.looseObject({ Components: z.array(z.looseObject({ Name: z.string() })).nullish() })
const Info = z.looseObject({
  ServerVersion: z.string().default('?'),
  Driver: z.string().default('?'),
  CgroupVersion: z.string().default('?'),
  MemoryLimit: z.boolean().default(true),
  PidsLimit: z.boolean().default(true),
  SecurityOptions: z.array(z.string()).nullish(),
  /** Reported by Podman. */
  Rootless: z.boolean().nullish(),
})
type Info = z.infer<typeof Info>

/** User and environment of commands, which depend on image and user only. */
interface CommandBase {
  owner: { uid: number; gid: number }
  env: Readonly<Record<string, string>>
}

interface Container {
  containerId: string
  user: string
  tracker: ProcessTracker
}

/** One container per sandbox, on any engine with Docker's API. */
class DockerRuntime implements Runtime {
  readonly kind = 'docker'
  readonly #config: DockerConfig
  readonly #deps: RuntimeDeps
  readonly #engine: ContainerEngine
  readonly #images: Images
  readonly #snapshots: Snapshots
  /** Assumed until the engine has reported its abilities. */
  #limits: readonly (keyof SandboxLimits)[]
  #info: Promise<Info> | undefined
  readonly #records: Records
  /** Distinguishes our containers from those of nodes with another folder. */
  readonly #scope: string
  readonly #spawn = createCleanSpawn()
  readonly #bases = new Map<string, Promise<CommandBase>>()
  readonly #pacer: StartPacer
  #securityOptions: Promise<readonly string[]> | undefined

  constructor(config: DockerConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#pacer = new StartPacer(config.startsPerSecond, () => deps.now())
    this.#limits = [...KERNEL_LIMITS, ...diskLimit(config)]
    this.#engine = new ContainerEngine(config.socket)
    this.#images = new Images(this.#engine, config)
    this.#records = new Records(deps.dir)
    this.#scope = createHash('sha256').update(deps.dir).digest('hex').slice(0, 10)
    this.#snapshots = new Snapshots(deps.dir, config, {
      now: () => deps.now(),
      inUse: () => this.#records.snapshotsInUse(),
      discard: (name) => {
        const { repo, tag } = this.#snapshotImage(name)
        return this.#images.remove(`${repo}:${tag}`)
      },
    })
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: true,
      isolatesProcesses: true,
      networks: ['none', 'allow', 'open'],
      limits: this.#limits,
      images: 'required',
      supportsSnapshots: !this.#config.readOnly,
    }
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { socket, image, pull, diskQuota } = this.#config
    try {
      const info = await this.#readInfo(signal)
      const missing = KERNEL_LIMITS.filter((limit) => !this.#limits.includes(limit))
      if (image !== undefined && pull === 'never' && (await this.#images.find(image)) === undefined)
        return { isUsable: false, reason: `image ${image} is not on this node and runtime.pull is never` }
      return {
        isUsable: true,
        notes: [
          `engine ${info.ServerVersion} at ${socket}${isRootless(info) ? ', rootless' : ''}, control groups v${info.CgroupVersion}`,
          ...(missing.length === 0 ? [] : [`the engine cannot limit ${missing.join(', ')}`]),
          this.#entersHost
            ? 'processes of commands are tracked by control groups of this machine'
            : 'processes of commands are tracked inside the container, by their parents',
          diskQuota
            ? `disk limits by ${info.Driver}`
            : `no disk limit: set runtime.diskQuota where the storage (${info.Driver}) has quotas`,
          "allow uses a proxy for HTTP and CONNECT; open is the engine's network in runtime.network",
        ],
      }
    } catch (error) {
      signal.throwIfAborted()
      return { isUsable: false, reason: error instanceof Error ? error.message : String(error) }
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    this.#info ??= this.#readInfo()
    const hasGroups = canUseGroups(await this.#info)
    const missing = KERNEL_LIMITS.filter((limit) => spec.limits[limit] !== undefined && !this.#limits.includes(limit))
    if (missing.length > 0)
      throw new RolloutError(
        'runtime.unsupported',
        `The engine at ${this.#config.socket} cannot limit ${missing.join(', ')}; without root, the engine needs control groups v2 for that`,
      )
    const name = this.#imageFor(spec)
    const image = await this.#requireImage(spec, name, signal)
    const user = this.#config.user === 'image' ? image.Config?.User || '0:0' : this.#config.user
    await this.#pacer.wait(signal)
    await makeDirectories(this.#deps.dir, 0o700)
    const record = await this.#records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const below = spec.snapshot === undefined ? [] : await this.#snapshots.use(spec.snapshot)
    const folder = this.#records.folderOf(spec.id)
    try {
      const { handlers, proxyPort } = planSockets(spec)
      const forwarded =
        handlers.size === 0 || this.#entersHost
          ? undefined
          : await ForwardedSockets.create(join(folder, 'sockets'), handlers)
      if (forwarded !== undefined) undo.use(forwarded)
      // These requests are not aborted by the signal: the engine could still execute them after the sandbox was removed.
      const containerId = await this.#createContainer(spec, name, forwarded?.mounts ?? [])
      signal.throwIfAborted()
      await this.#engine.call('POST', `/containers/${containerId}/start`)
      const tracker = await this.#createTracker(containerId, user)
      signal.throwIfAborted()
      const base = await this.#baseOf(image, { containerId, user, tracker })
      await this.#makeWorkdir(spec, { containerId, user, tracker }, base)
      const servers = await this.#openSockets(handlers, { containerId, user, tracker, forwarded }, signal)
      undo.defer(() => servers.forEach((socket) => socket.close()))
      signal.throwIfAborted()
      undo.move()
      return new DockerSandbox({
        engine: this.#engine,
        containerId,
        user,
        record,
        records: this.#records,
        folder,
        workdir: spec.workdir,
        env: {
          ...base.env,
          ...proxyVariables({ proxyPort }),
          ...spec.env,
        },
        owner: base.owner,
        tracker,
        servers,
        socketPort: spec.socket?.port,
        canPause: hasGroups,
        keep: (snapshot, commit) => this.#keep(snapshot, below, commit),
        remove: () => this.#end(spec.id, tracker),
        now: () => this.#deps.now(),
      })
    } catch (cause) {
      signal.throwIfAborted()
      if (!(cause instanceof ContainerEngineError)) throw cause
      throw new RolloutError('runtime.start-failed', `Cannot start sandbox ${spec.id}: ${cause.message}`, { cause })
    }
  }

  /** Returns sandboxes with a record, and containers whose record was lost. */
  async list(): Promise<SandboxInfo[]> {
    const filters = JSON.stringify({ label: [`${LABEL}.scope=${this.#scope}`] })
    const known = await this.#records.list()
    const containers = Listed.parse(
      await this.#engine.call('GET', '/containers/json', { query: { all: 'true', filters } }),
    )
    const strays = containers.flatMap(({ Labels: labels, Created: created }): SandboxInfo[] => {
      const parsed = Label.safeParse(parseJson(labels?.[LABEL] ?? ''))
      if (!parsed.success || known.some(({ id }) => id === parsed.data.id)) return []
      return [{ ...parsed.data, startedAt: created * 1000 }]
    })
    return [...known, ...strays]
  }

  async remove(id: string): Promise<void> {
    const query = { force: 'true', v: 'true' }
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#engine.call('DELETE', `/containers/${this.#nameOf(id)}`, { query }).catch(ignoreStatus(404))
        break
      } catch (error) {
        // The engine rejects the removal of a container that has just ended or is being removed.
        if (!(error instanceof ContainerEngineError) || attempt === REMOVE_ATTEMPTS) throw error
        await sleep(50)
      }
    }
    await this.#records.remove(id)
  }

  removeOldSnapshots(): Promise<string[]> {
    return this.#snapshots.prune()
  }

  removeSnapshot(name: string): Promise<void> {
    return this.#snapshots.remove(name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#snapshots[Symbol.asyncDispose]()
    await this.#engine[Symbol.asyncDispose]()
  }

  /** Reads the abilities of the engine. */
  async #readInfo(signal?: AbortSignal): Promise<Info> {
    const response = this.#engine.call('GET', '/info', { signal })
    const info = Info.parse(
      await response.catch((cause: unknown) => {
        this.#info = undefined
        const reason = cause instanceof Error ? cause.message : String(cause)
        throw new RolloutError('runtime.start-failed', `The container engine does not respond: ${reason}`, { cause })
      }),
    )
    const hasGroups = canUseGroups(info)
    const unable = [...(info.MemoryLimit ? [] : ['memoryMb']), ...(info.PidsLimit ? [] : ['pids'])]
    const limits = KERNEL_LIMITS.filter((limit) => hasGroups && !unable.includes(limit))
    this.#limits = [...limits, ...diskLimit(this.#config)]
    return info
  }

  get #entersHost(): boolean {
    return this.#config.reach === undefined ? process.getuid?.() === 0 : this.#config.reach === 'host'
  }

  #nameOf(id: string): string {
    this.#records.folderOf(id)
    return `polar-${this.#scope}-${id}`
  }

  #snapshotImage(snapshot: string): ImageTag {
    this.#snapshots.folderOf(snapshot)
    return { repo: `localhost/polar-snapshot-${this.#scope}`, tag: snapshot }
  }

  async #keep(snapshot: string, below: readonly string[], commit: (tag: ImageTag) => Promise<number>): Promise<void> {
    const { repo, tag } = this.#snapshotImage(snapshot)
    const isThere = (await this.#images.find(`${repo}:${tag}`)) !== undefined
    // Other users of the engine can remove images.
    if (!isThere) await this.#snapshots.forget(snapshot)
    await this.#snapshots.add(snapshot, below, () => commit({ repo, tag }))
  }

  #imageFor(spec: SandboxSpec): string {
    if (spec.snapshot !== undefined) {
      const { repo, tag } = this.#snapshotImage(spec.snapshot)
      return `${repo}:${tag}`
    }
    const name = spec.image ?? this.#config.image
    if (name === undefined)
      throw new RolloutError(
        'runtime.unsupported',
        'A container needs an image: name one in the task, or set runtime.image',
      )
    return name
  }

  async #requireImage(spec: SandboxSpec, name: string, signal: AbortSignal): Promise<Image> {
    if (spec.snapshot === undefined) return this.#images.require(name, signal)
    const image = await this.#images.find(name)
    if (image !== undefined) return image
    throw new RolloutError('runtime.image-missing', `Snapshot ${spec.snapshot} does not exist on this node`)
  }

  async #createContainer(spec: SandboxSpec, image: string, ownMounts: readonly Mount[]): Promise<string> {
    const config = this.#config
    this.#securityOptions ??= this.#findSecurityOptions()
    const securityOptions = await this.#securityOptions
    const { memoryMb, cpus, pids, diskMb } = spec.limits
    const memory = memoryMb === undefined ? undefined : memoryMb * 1024 * 1024
    const label = { id: spec.id, leaseUntil: spec.leaseUntil, labels: spec.labels }
    const answer = await this.#engine.call('POST', '/containers/create', {
      query: { name: this.#nameOf(spec.id) },
      json: {
        Image: image,
        Entrypoint: INIT,
        Cmd: [],
        User: '0:0',
        WorkingDir: spec.workdir,
        Labels: { [LABEL]: JSON.stringify(label), [`${LABEL}.scope`]: this.#scope },
        StopSignal: 'SIGKILL',
        StopTimeout: 0,
        Hostname: 'sandbox',
        Volumes: config.readOnly ? Object.fromEntries(volumesOf(spec).map((path) => [path, {}])) : undefined,
        HostConfig: {
          NetworkMode: spec.network.kind === 'open' ? config.network : 'none',
          CapDrop: ['ALL'],
          CapAdd: config.capabilities,
          SecurityOpt: securityOptions,
          IpcMode: 'private',
          // With swap, a program over its limit would become slow instead of being killed.
          Memory: memory,
          MemorySwap: memory,
          // Files in /dev/shm count as memory: if they used all of it, no process could be started any more.
          ShmSize: memory === undefined ? undefined : Math.min(SHARED_MEMORY_BYTES, memory / 2),
          ...(cpus !== undefined && { CpuPeriod: CPU_PERIOD_US, CpuQuota: Math.round(cpus * CPU_PERIOD_US) }),
          PidsLimit: pids,
          StorageOpt: diskMb !== undefined && config.diskQuota ? { size: `${diskMb}m` } : undefined,
          // Podman sets its own default for a missing limit, which it may not be permitted to set.
          Ulimits: [
            { Name: 'nofile', Soft: config.nofile, Hard: config.nofile },
            { Name: 'nproc', Soft: config.nproc, Hard: config.nproc },
            { Name: 'core', Soft: 0, Hard: 0 },
          ],
          // The kernel's out-of-memory killer chooses processes of sandboxes first.
          OomScoreAdj: SANDBOX_OOM_SCORE,
          UsernsMode: config.userNamespace,
          ...(config.readOnly && {
            ReadonlyRootfs: true,
            Tmpfs: { '/tmp': `rw,nosuid,nodev,mode=1777${memoryMb === undefined ? '' : `,size=${memoryMb}m`}` },
          }),
          LogConfig: { Type: 'none' },
          Mounts: [...ownMounts, ...spec.mounts].map(({ source, target, isReadOnly }) => ({
            Type: 'bind',
            Source: source,
            Target: target,
            ReadOnly: isReadOnly,
          })),
        },
      },
    })
    return Created.parse(answer).Id
  }

  async #findSecurityOptions(): Promise<readonly string[]> {
    const version = Version.parse(await this.#engine.call('GET', '/version'))
    const isPodman = version.Components?.some(({ Name: name }) => name.startsWith('Podman')) === true
    const profile = isPodman ? await writePodmanProfile(this.#deps.dir) : undefined
    return ['no-new-privileges', ...(profile === undefined ? [] : [`seccomp=${profile}`])]
  }

  async #createTracker(containerId: string, user: string): Promise<ProcessTracker> {
    if (!this.#entersHost) return new TreeTracker(this.#engine, containerId, user)
    const { State: state } = Inspected.parse(await this.#engine.call('GET', `/containers/${containerId}/json`))
    if (!state.Running)
      throw new RolloutError('runtime.start-failed', 'The container ended at once; its image needs /bin/sh and sleep')
    const tracker = await CgroupTracker.find(this.#engine, containerId, state.Pid)
    if (tracker !== undefined) return tracker
    throw new RolloutError(
      'runtime.start-failed',
      "The container's processes are not visible on this machine; set runtime.reach to inside",
    )
  }

  #baseOf(image: Image, container: Container): Promise<CommandBase> {
    const known = this.#bases.get(image.Id)
    if (known !== undefined) return known
    const base = this.#readBase(image, container)
    this.#bases.set(image.Id, base)
    base.catch(() => this.#bases.delete(image.Id))
    return base
  }

  async #readBase(image: Image, { containerId, user, tracker }: Container): Promise<CommandBase> {
    using _ = await tracker.expect()
    const script = 'id -u && id -g && echo "$HOME" && echo "$PATH"'
    const { exitCode, stdout, stderr } = await runInside(this.#engine, containerId, {
      command: ['/bin/sh', '-c', script],
      user,
    })
    const [uid, gid, home, path] = stdout.split('\n')
    if (exitCode !== 0 || home === undefined || path === undefined)
      throw new RolloutError('runtime.start-failed', `The image has no working shell: ${stderr.slice(-500)}`)
    const fromImage = (image.Config?.Env ?? []).map((line): [string, string] => {
      const at = line.indexOf('=')
      return [line.slice(0, at), line.slice(at + 1)]
    })
    return {
      owner: { uid: Number(uid), gid: Number(gid) },
      env: { HOME: home === '' ? '/' : home, ...Object.fromEntries(fromImage), PATH: path },
    }
  }

  /** The engine creates the workdir, but as root's. */
  async #makeWorkdir(spec: SandboxSpec, { containerId, tracker }: Container, { owner }: CommandBase): Promise<void> {
    const folders = spec.folders ?? []
    if (this.#config.readOnly) {
      if (owner.uid === 0 && folders.length === 0) return
      // Docker cannot change the owner of a volume, but root inside can open it for all users.
      using _ = await tracker.expect()
      const paths = [spec.workdir, ...folders]
      const command = ['/bin/sh', '-c', 'mkdir -p -- "$@" && chmod 0777 -- "$@"', 'sh', ...paths]
      const { exitCode, stderr } = await runInside(this.#engine, containerId, { command, user: '0:0' })
      if (exitCode === 0) return
      throw new RolloutError('runtime.start-failed', `Cannot make ${spec.workdir} writable: ${stderr.slice(-500)}`)
    }
    const nothing = () => Promise.reject(new RolloutError('internal.bug', 'A new folder replaces no file'))
    const files = new ContainerFiles({ engine: this.#engine, containerId, owner, runInside: nothing })
    if (owner.uid !== 0) await files.makeDirectory(spec.workdir)
    await files.makeDirectories(folders)
  }

  async #openSockets(
    handlers: ReadonlyMap<number, SocketHandler>,
    { containerId, user, tracker, forwarded }: Container & { forwarded: ForwardedSockets | undefined },
    signal: AbortSignal,
  ): Promise<readonly SocketServer[]> {
    if (handlers.size === 0) return []
    if (forwarded !== undefined) return forwarded.open(this.#engine, { containerId, user, tracker })
    if (!(tracker instanceof CgroupTracker)) return []
    const prefix = ['nsenter', '-t', String(tracker.first.pid), '-n']
    return listenInside({ spawn: this.#spawn, prefix }, handlers, signal)
  }

  async #end(id: string, tracker: ProcessTracker): Promise<void> {
    // Ends all processes at once, even if the engine is busy.
    if (tracker instanceof CgroupTracker) await signalProcess(tracker.first, 'SIGKILL')
    await this.remove(id)
  }
}

/**
 * Folders of a read-only container that are volumes. A command cannot remove a volume, so no volume is below another.
 */
function volumesOf({ workdir, folders = [] }: SandboxSpec): string[] {
  const [top] = folders
  if (top === undefined) return [workdir]
  return `${workdir}/`.startsWith(`${top}/`) ? [top] : [workdir, top]
}

function isRootless({ Rootless: isSaid, SecurityOptions: options }: Info): boolean {
  return isSaid === true || options?.some((option) => option.includes('rootless')) === true
}

/** Only root can use control groups v1; Podman then silently omits limits that it cannot set. */
function canUseGroups(info: Info): boolean {
  return !(isRootless(info) && info.CgroupVersion === '1')
}

function diskLimit({ diskQuota }: DockerConfig): (keyof SandboxLimits)[] {
  return diskQuota ? ['diskMb'] : []
}
