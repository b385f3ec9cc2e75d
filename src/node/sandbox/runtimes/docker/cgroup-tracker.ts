import { closeSync, constants, existsSync, openSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../../model/failure.ts'
import { Cgroup, type CgroupFolders } from '../../linux/limits/cgroups.ts'
import { childrenOf, identify, isAlive, signalProcess, type ProcessRef } from '../../linux/process/processes.ts'
import type { SandboxStats } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { inspectExec } from './inside.ts'
import type { CommandProcesses, TrackedCommand, ProcessTracker } from './process-tracker.ts'

const PID_ATTEMPTS = 20
const { O_NONBLOCK, O_RDONLY } = constants

type Controller = keyof CgroupFolders
type CgroupFolder = NonNullable<CgroupFolders[Controller]>

/**
 * For an engine on this machine if we are root: the container's processes are processes of this machine, in a control
 * group. Every command gets a group of its own below it, which no process in the container can leave.
 */
export class CgroupTracker implements ProcessTracker {
  readonly first: ProcessRef
  readonly #engine: ContainerEngine
  readonly #group: Cgroup
  /** The container's group, below which the groups of commands are created. */
  readonly #parent: CgroupFolder
  /** The child that the first process waits for. */
  #idle: number | undefined
  #expected = 0
  #count = 0

  /** Returns undefined if the engine's processes are not visible: a remote engine, or one in a virtual machine. */
  static async find(engine: ContainerEngine, containerId: string, pid: number): Promise<CgroupTracker | undefined> {
    if (process.getuid?.() !== 0) return undefined
    const first = await identify(pid)
    const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '')
    // A pid of another machine may also exist on this one; the group's name contains the container's id.
    if (first === undefined || !groups.includes(containerId)) return undefined
    const folders = cgroupFoldersOf(groups, await readFile('/proc/self/mounts', 'utf8'))
    if (folders.pids === undefined || !existsSync(folders.pids.folder)) return undefined
    const tracker = new CgroupTracker(engine, first, folders, folders.pids)
    ;[tracker.#idle] = await childrenOf(pid)
    return tracker
  }

  private constructor(engine: ContainerEngine, first: ProcessRef, folders: CgroupFolders, parent: CgroupFolder) {
    this.#engine = engine
    this.first = first
    this.#group = new Cgroup(folders)
    this.#parent = parent
  }

  async expect(): Promise<Disposable> {
    this.#expected += 1
    return {
      [Symbol.dispose]: () => {
        this.#expected -= 1
      },
    }
  }

  async open({ execId, insidePid, mayLeave }: TrackedCommand): Promise<CommandProcesses> {
    const pid = await this.#pidOf(execId)
    const chain = await chainOf(pid)
    const [waiter, first] = [await identify(pid), await identify(chain.at(-1) ?? pid)]
    if (waiter === undefined || first === undefined || (await pidInside(first.pid)) !== insidePid)
      throw new RolloutError('runtime.gone', 'The command ended before it was started')
    const folder = join(this.#parent.folder, `polar-${(this.#count += 1)}-${execId.slice(0, 12)}`)
    const group = new Cgroup({ pids: { ...this.#parent, folder } })
    await group.create({})
    for (const each of chain) await writeFile(join(folder, 'cgroup.procs'), String(each))
    const end = async () => {
      await stopForking(group, this.#parent, folder)
      await group.remove()
      if (existsSync(folder)) await signalProcess(this.first, 'SIGKILL')
      await this.#sweep()
    }
    let closing: Promise<void> | undefined
    const outputs = mayLeave ? [1, 2].flatMap((number) => openOutput(pid, number)) : []
    return {
      isRunning: () => isAlive(waiter),
      signal: (name) => signalProcess(first, name),
      close: () => {
        for (const fd of outputs.splice(0)) closeSync(fd)
        return (closing ??= end())
      },
      async leave() {
        for (const fd of outputs.splice(0)) drain(fd)
      },
    }
  }

  /** Docker forwards output of a command before it reports the command's pid. */
  async #pidOf(execId: string): Promise<number> {
    for (let attempt = 0; attempt < PID_ATTEMPTS; attempt += 1) {
      const { Pid: pid } = await inspectExec(this.#engine, execId)
      if (pid > 0) return pid
      await sleep(Math.min(2 ** attempt, 100))
    }
    throw new RolloutError('runtime.gone', 'The command ended before it was started')
  }

  countOutOfMemory(): Promise<number | undefined> {
    return this.#group.countOutOfMemory()
  }

  stats(): Promise<SandboxStats> {
    return this.#group.stats()
  }

  /**
   * Only the first process and its child belong in the container's own group; others are processes of commands that
   * moved there.
   */
  async #sweep(): Promise<void> {
    if (this.#expected > 0) return
    const members = await readFile(join(this.#parent.folder, 'cgroup.procs'), 'utf8').catch(() => '')
    for (const pid of members.split('\n').filter(Boolean).map(Number)) {
      const ref = pid === this.first.pid || pid === this.#idle ? undefined : await identify(pid)
      if (ref !== undefined && this.#expected === 0) await signalProcess(ref, 'SIGKILL')
    }
  }
}

/** Returns the process, its only child, the child's only child, and so on. */
async function chainOf(pid: number): Promise<number[]> {
  const [child] = await childrenOf(pid)
  return [pid, ...(child === undefined ? [] : await chainOf(child))]
}

/** Pid in the innermost namespace. */
async function pidInside(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'latin1').catch(() => '')
  return Number(/^NSpid:.*\s(\d+)$/m.exec(status)?.[1])
}

/**
 * Opens the reading end of a pipe that a process writes to. Podman closes its own end with the command's first process,
 * which would end processes that stay and write.
 */
function openOutput(pid: number, number: number): number[] {
  try {
    return [openSync(`/proc/${pid}/fd/${number}`, O_RDONLY | O_NONBLOCK)]
  } catch {
    return []
  }
}

function drain(fd: number): void {
  const pipe = new Socket({ fd, readable: true, writable: false })
  pipe.on('error', () => pipe.destroy())
  pipe.unref().resume()
}

/** Ends processes that fork faster than they can be killed. */
async function stopForking(group: Cgroup, { version }: CgroupFolder, folder: string): Promise<void> {
  if (!existsSync(folder)) return
  if (version === 1) await group.create({ pids: 0 })
  else await writeFile(join(folder, 'cgroup.kill'), '1').catch(() => {})
}

const CONTROLLERS: readonly Controller[] = ['memory', 'pids', 'cpu', 'cpuacct']

/** Returns the folders of a process's groups, from its /proc/<pid>/cgroup. */
export function cgroupFoldersOf(groups: string, mounts: string): CgroupFolders {
  const lines = groups.split('\n').map((line) => line.split(':'))
  const mounted = mounts.split('\n').map((line) => line.split(' '))
  const unified = mounted.find(([, , type]) => type === 'cgroup2')?.[1]
  const unifiedPath = lines.find(([number, names]) => number === '0' && names === '')?.[2]
  const folders = CONTROLLERS.map((controller): [Controller, CgroupFolder | undefined] => {
    const path = lines.find(([, names]) => names?.split(',').includes(controller))?.[2]
    const folder = mounted.find(
      ([, , type, options]) => type === 'cgroup' && options?.split(',').includes(controller),
    )?.[1]
    if (path !== undefined && folder !== undefined) return [controller, { version: 1, folder: join(folder, path) }]
    if (unified === undefined || unifiedPath === undefined) return [controller, undefined]
    return [controller, { version: 2, folder: join(unified, unifiedPath) }]
  })
  return Object.fromEntries(folders.filter(([, parent]) => parent !== undefined))
}
