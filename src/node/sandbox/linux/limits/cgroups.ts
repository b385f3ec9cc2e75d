import { accessSync, constants, existsSync } from 'node:fs'
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { ignoreErrno } from '../../../../lib/fs/errno.ts'
import type { SandboxLimits, SandboxStats } from '../../runtimes/runtime.ts'
import { readIfExists } from '../files/read-if-exists.ts'
import { identify, signalProcess } from '../process/processes.ts'

type Controller = 'memory' | 'pids' | 'cpu' | 'cpuacct'

const CONTROLLERS: readonly Controller[] = ['memory', 'pids', 'cpu', 'cpuacct']
const PERIOD_US = 100_000
/** Older kernels release a group only a moment after its last process has ended. */
const REMOVE_ATTEMPTS = 50

interface CgroupFolder {
  version: 1 | 2
  folder: string
}

/** Folders of a group by controller; stored, so that another process can remove the group. */
export type CgroupFolders = Partial<Record<Controller, CgroupFolder>>

/** Creates control groups if this process may: version 1, version 2, or both. */
export class Cgroups {
  /** The folders below which groups are created. */
  readonly #roots: ReadonlyMap<Controller, CgroupFolder>

  private constructor(folders: ReadonlyMap<Controller, CgroupFolder>) {
    this.#roots = folders
  }

  /** Returns undefined if this process cannot create groups. */
  static detect(): Cgroups | undefined {
    const folders = new Map<Controller, CgroupFolder>()
    const mounts = readIfExists('/proc/self/mounts').split('\n')
    const own = readIfExists('/proc/self/cgroup').split('\n')
    for (const line of mounts) {
      const [, folder, type, options] = line.split(' ')
      if (folder === undefined || options === undefined) continue
      if (type === 'cgroup') {
        for (const controller of CONTROLLERS.filter((name) => options.split(',').includes(name))) {
          // Below this process's own group, so that its limits also apply to sandboxes.
          const group = own.find((entry) => entry.split(':')[1]?.split(',').includes(controller))?.split(':')[2] ?? '/'
          const nested = join(folder, group)
          folders.set(controller, { version: 1, folder: existsSync(nested) ? nested : folder })
        }
      } else if (type === 'cgroup2') {
        const enabled = readIfExists(join(folder, 'cgroup.subtree_control')).split(/\s/)
        for (const controller of CONTROLLERS.filter((name) => enabled.includes(name)))
          if (!folders.has(controller)) folders.set(controller, { version: 2, folder })
      }
    }
    for (const [controller, { folder }] of folders) if (!isWritable(folder)) folders.delete(controller)
    return folders.size === 0 ? undefined : new Cgroups(folders)
  }

  /** The limits that can be set. */
  get limits(): (keyof SandboxLimits)[] {
    const limits: Partial<Record<Controller, keyof SandboxLimits>> = { memory: 'memoryMb', pids: 'pids', cpu: 'cpus' }
    return [...this.#roots.keys()].map((controller) => limits[controller]).filter((limit) => limit !== undefined)
  }

  get version(): string {
    return [...new Set([...this.#roots.values()].map(({ version }) => `v${version}`))].join(' and ')
  }

  /** Calls `note` with the folders before they are created, so that another process can remove them after a crash. */
  async create(name: string, limits: SandboxLimits, note: (folders: CgroupFolders) => Promise<void>): Promise<Cgroup> {
    const folders = [...this.#roots].map(([key, { version, folder }]) => [key, { version, folder: join(folder, name) }])
    const group = new Cgroup(Object.fromEntries(folders))
    await note(group.folders)
    try {
      await group.create(limits)
    } catch (error) {
      await group.remove()
      throw error
    }
    return group
  }
}

export class Cgroup {
  readonly folders: CgroupFolders

  constructor(folders: CgroupFolders) {
    this.folders = folders
  }

  /** A process that writes 0 to each of these files joins the group, with all its descendants. */
  get joinFiles(): string[] {
    return this.#all().map((folder) => join(folder, 'cgroup.procs'))
  }

  async create({ memoryMb, pids, cpus }: SandboxLimits): Promise<void> {
    for (const folder of this.#all()) await mkdir(folder, { mode: 0o755 }).catch(ignoreErrno('EEXIST'))
    const bytes = memoryMb === undefined ? undefined : String(memoryMb * 1024 * 1024)
    await this.#set('memory', bytes, { 1: 'memory.limit_in_bytes', 2: 'memory.max' })
    // With swap, a program over its limit would become slow instead of being killed. The files are absent without swap.
    await this.#set('memory', bytes, { 1: 'memory.memsw.limit_in_bytes' }).catch(() => {})
    await this.#set('memory', bytes === undefined ? undefined : '0', { 2: 'memory.swap.max' }).catch(() => {})
    await this.#set('pids', pids === undefined ? undefined : String(pids), { 1: 'pids.max', 2: 'pids.max' })
    if (cpus === undefined) return
    const quota = Math.round(cpus * PERIOD_US)
    await this.#set('cpu', String(quota), { 1: 'cpu.cfs_quota_us' })
    await this.#set('cpu', `${quota} ${PERIOD_US}`, { 2: 'cpu.max' })
  }

  async stats(): Promise<SandboxStats> {
    const memory = await this.#read('memory', { 1: 'memory.usage_in_bytes', 2: 'memory.current' })
    const processes = await this.#read('pids', { 1: 'pids.current', 2: 'pids.current' })
    const nanoseconds = await this.#read('cpuacct', { 1: 'cpuacct.usage' })
    const cpu = await this.#read('cpu', { 2: 'cpu.stat' })
    const microseconds = cpu === undefined ? undefined : numberAfter(cpu, 'usage_usec')
    const fallbackMs = microseconds === undefined ? undefined : microseconds / 1e3
    const cpuMs = nanoseconds === undefined ? fallbackMs : Number(nanoseconds) / 1e6
    return {
      memoryBytes: memory === undefined ? undefined : Number(memory),
      processes: processes === undefined ? undefined : Number(processes),
      cpuMs,
    }
  }

  /** Number of processes of the group that the kernel killed for lack of memory; undefined if unknown. */
  async countOutOfMemory(): Promise<number | undefined> {
    const events = await this.#read('memory', { 1: 'memory.oom_control', 2: 'memory.events' })
    return events === undefined ? undefined : numberAfter(events, 'oom_kill')
  }

  /** Kills all processes of the group and removes it. An absent group is no error. */
  async remove(): Promise<void> {
    for (const folder of this.#all()) {
      for (let attempt = 0; attempt < REMOVE_ATTEMPTS && existsSync(folder); attempt += 1) {
        await killMembers(folder)
        await rmdir(folder).catch(ignoreErrno('EBUSY', 'ENOENT'))
        if (existsSync(folder)) await sleep(20)
      }
    }
  }

  #all(): string[] {
    return [...new Set(Object.values(this.folders).map(({ folder }) => folder))]
  }

  async #set(controller: Controller, value: string | undefined, files: Partial<Record<1 | 2, string>>): Promise<void> {
    const entry = this.folders[controller]
    const file = entry === undefined ? undefined : files[entry.version]
    if (entry !== undefined && file !== undefined && value !== undefined)
      await writeFile(join(entry.folder, file), value)
  }

  async #read(controller: Controller, files: Partial<Record<1 | 2, string>>): Promise<string | undefined> {
    const entry = this.folders[controller]
    const file = entry === undefined ? undefined : files[entry.version]
    if (entry === undefined || file === undefined) return undefined
    return readFile(join(entry.folder, file), 'utf8').catch(() => undefined)
  }
}

async function killMembers(folder: string): Promise<void> {
  const members = await readFile(join(folder, 'cgroup.procs'), 'utf8').catch(() => '')
  for (const pid of members.split('\n').filter(Boolean).map(Number)) {
    const ref = await identify(pid)
    if (ref !== undefined) await signalProcess(ref, 'SIGKILL')
  }
}

function numberAfter(text: string, key: string): number | undefined {
  const line = text.split('\n').find((each) => each.startsWith(`${key} `))
  return line === undefined ? undefined : Number(line.slice(key.length + 1))
}

function isWritable(folder: string): boolean {
  try {
    accessSync(folder, constants.W_OK)
    return true
  } catch {
    return false
  }
}
