import type { ChildProcess } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdir, rename, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { makeDirectories } from '../../lib/make-directories.ts'
import type { Plug } from '../../lib/plug.ts'
import { runProgram } from '../../lib/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { Cgroup, Cgroups } from '../sandbox/cgroups.ts'
import { createCleanSpawn, type CleanSpawn } from '../sandbox/clean-spawn.ts'
import { listenHere, type DoorServer } from '../sandbox/doors.ts'
import { openEntry, type Room } from '../sandbox/execution.ts'
import { HOST_PATH, HostedSandbox, joinLead, type Cell } from '../sandbox/hosted-sandbox.ts'
import { Pipes } from '../sandbox/pipes.ts'
import { childrenOf, endProcesses, identify, isAlive, signalProcess, type ProcessRef } from '../sandbox/processes.ts'
import { Records, type SandboxRecord } from '../sandbox/records.ts'
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

const LocalConfig = z.strictObject({ kind: z.literal('local') })

export const local: Plug<typeof LocalConfig, RuntimeDeps, Runtime> = {
  config: LocalConfig,
  create: (_config, deps) => new LocalRuntime(deps),
}

const HOST_ENV = { PATH: HOST_PATH }
const MARK = 'POLAR_SANDBOX'
/** Does nothing but reap what others leave behind. */
const HOLD = 'echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1'
const START_MS = 30_000

/**
 * No sandbox at all: a folder, a clean environment, and our own rights to everything on the machine. For trying things
 * out, and for programs that are trusted. What it does promise is that a command ends with all that it started: each has
 * a process namespace, where the machine lets us make one. Elsewhere its processes are found by a mark in their
 * environment, which a program that means to can rub out.
 */
class LocalRuntime implements Runtime {
  readonly kind = 'local'
  readonly #deps: RuntimeDeps
  readonly #cgroups = Cgroups.detect()
  readonly #records: Records
  readonly #pipes: Pipes
  readonly #spawn = createCleanSpawn()
  #hasNamespaces: Promise<boolean> | undefined

  constructor(deps: RuntimeDeps) {
    this.#deps = deps
    this.#records = new Records(deps.dir)
    this.#pipes = new Pipes(deps.dir)
  }

  get capabilities(): RuntimeCapabilities {
    return {
      isolatesFiles: false,
      isolatesProcesses: false,
      networks: ['open'],
      limits: this.#cgroups?.limits ?? [],
      images: 'none',
      supportsSnapshots: true,
    }
  }

  async check(): Promise<RuntimeCheck> {
    this.#hasNamespaces ??= canMakeNamespaces()
    const hasNamespaces = await this.#hasNamespaces
    return {
      isUsable: true,
      notes: [
        'nothing is kept apart: commands have our rights to files, processes and network',
        hasNamespaces
          ? 'each command has a process namespace, so nothing outlives it'
          : 'no process namespaces here: a program that hides from its environment can outlive its command',
      ],
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    if (spec.image !== undefined) throw unsupported('an image')
    if (spec.snapshot !== undefined && (await stat(this.#snapshot(spec.snapshot)).catch(() => undefined)) === undefined)
      throw new RolloutError('runtime.image-missing', `There is no snapshot ${spec.snapshot} here`)
    if (spec.mounts.some(({ source, target }) => source !== target)) throw unsupported('mounts under another path')
    this.#hasNamespaces ??= canMakeNamespaces()
    const hasNamespaces = await this.#hasNamespaces
    const record = await this.#records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const folder = this.#records.folderOf(spec.id)
    const [workdir, home] = [join(folder, 'work'), join(folder, 'home')]
    await mkdir(home, { mode: 0o755 })
    if (spec.snapshot === undefined) await mkdir(workdir, { mode: 0o755 })
    else await copyTree(this.#snapshot(spec.snapshot), workdir)
    const cgroup = await this.#cgroups?.create(`polar-${spec.id}`, spec.limits)
    if (cgroup !== undefined) {
      record.cgroup = cgroup.places
      await this.#records.write(record)
    }
    const { door } = spec
    const doorServer = door === undefined ? undefined : await listenHere(door.port, (socket) => door.accept(socket))
    undo.defer(() => doorServer?.close())
    signal.throwIfAborted()
    undo.move()
    const cell = new LocalCell({
      record,
      folder,
      workdir,
      env: { PATH: HOST_PATH, HOME: home, ...spec.env },
      hasNamespaces,
      cgroup,
      door: doorServer,
      snapshot: async (name) => {
        const place = this.#snapshot(name)
        if ((await stat(place).catch(() => undefined)) !== undefined) return
        await makeDirectories(join(this.#deps.dir, 'snapshots'), 0o700)
        const draft = `${place}.${randomUUID()}`
        await copyTree(workdir, draft)
        await rename(draft, place)
      },
      spawn: this.#spawn,
      pipes: this.#pipes,
      discard: () => this.remove(spec.id),
    })
    return new HostedSandbox(cell, { records: this.#records, spawn: this.#spawn, now: () => this.#deps.now() })
  }

  list(): Promise<SandboxInfo[]> {
    return this.#records.list()
  }

  async remove(id: string): Promise<void> {
    const record = await this.#records.load(id)
    if (record === undefined) return
    await endProcesses(`${MARK}=${this.#records.folderOf(id)}#`, 'environ')
    if (record.cgroup !== undefined) await new Cgroup(record.cgroup).remove()
    await this.#records.remove(id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pipes[Symbol.asyncDispose]()
  }

  #snapshot(name: string): string {
    if (/^[A-Za-z0-9][\w-]{0,127}$/.test(name)) return join(this.#deps.dir, 'snapshots', name)
    throw new RolloutError('runtime.unsupported', 'The name of a snapshot is letters, digits and dashes')
  }
}

interface CellOptions {
  record: SandboxRecord
  folder: string
  workdir: string
  env: Readonly<Record<string, string>>
  hasNamespaces: boolean
  cgroup: Cgroup | undefined
  door: DoorServer | undefined
  snapshot: (name: string) => Promise<void>
  spawn: CleanSpawn
  pipes: Pipes
  discard(): Promise<void>
}

class LocalCell implements Cell {
  readonly record: SandboxRecord
  readonly folder: string
  readonly workdir: string
  readonly doorPort: number | undefined
  readonly env: Readonly<Record<string, string>>
  readonly snapshot: (name: string) => Promise<void>
  readonly #options: CellOptions

  constructor(options: CellOptions) {
    this.record = options.record
    this.folder = options.folder
    this.workdir = options.workdir
    this.doorPort = options.door?.port
    this.env = { ...options.env, ...(!options.hasNamespaces && { [MARK]: `${options.folder}#` }) }
    this.snapshot = (name) => options.snapshot(name)
    this.#options = options
  }

  isAlive(): boolean {
    return true
  }

  async openRoom(): Promise<Room> {
    const { folder, hasNamespaces, spawn, pipes } = this.#options
    const mark = `${folder}#`
    const joined = joinLead(this.#options.cgroup?.joinFiles ?? [])
    const env = { ...HOST_ENV, [MARK]: mark }
    if (!hasNamespaces) {
      // One mark for all: without namespaces a command that ends takes those beside it along.
      const entry = await openEntry(joined, { spawn, pipes, env, hasWaiter: false })
      return { entry, close: () => endProcesses(`${MARK}=${mark}`, 'environ') }
    }
    const holder = ['--pdeathsig', 'KILL', 'unshare', ...namespaceOptions(), '/bin/sh', '-c', HOLD]
    const child = spawn('setpriv', holder, { stdio: ['ignore', 'pipe', 'ignore'], env, detached: true })
    const ended = new Promise((resolve) => child.once('exit', resolve))
    const first = await firstOf(child)
    const enter = process.getuid?.() === 0 ? [] : ['-U', '--preserve-credentials']
    const lead = [...joined, 'nsenter', ...enter, '-t', String(first.pid), '-p', '-m']
    const close = async (): Promise<void> => {
      await signalProcess(first, 'SIGKILL')
      await ended
      while (await isAlive(first)) await sleep(2)
    }
    return { entry: await openEntry(lead, { spawn, pipes, env, hasWaiter: true }), close }
  }

  toolLead(): readonly string[] {
    return []
  }

  async countOutOfMemory(): Promise<number | undefined> {
    return this.#options.cgroup?.countOutOfMemory()
  }

  async stats(): Promise<SandboxStats> {
    const { stdout } = await runProgram(['du', '-sk', '--', this.workdir], { env: HOST_ENV })
    const kilobytes = Number.parseInt(stdout, 10)
    const counted = await this.#options.cgroup?.stats()
    return { ...counted, ...(Number.isSafeInteger(kilobytes) && { diskBytes: kilobytes * 1024 }) }
  }

  async freeze(): Promise<void> {
    this.#options.door?.close()
    await endProcesses(`${MARK}=${this.folder}#`, 'environ')
  }

  async close(): Promise<void> {
    this.#options.door?.close()
    await this.#options.discard()
  }
}

function namespaceOptions(): string[] {
  const ids = process.getuid?.() === 0 ? [] : [`--map-user=${process.getuid?.()}`, `--map-group=${process.getgid?.()}`]
  return [...ids, '--pid', '--fork', '--kill-child', '--mount-proc']
}

async function canMakeNamespaces(): Promise<boolean> {
  const { exitCode } = await runProgram(['unshare', ...namespaceOptions(), 'true'], { env: HOST_ENV })
  return exitCode === 0
}

/** The first process of the room, once it says that it is there. */
async function firstOf(child: ChildProcess): Promise<ProcessRef> {
  try {
    await new Promise<void>((resolve, reject) => {
      child.stdout!.once('data', () => resolve())
      child.once('error', reject).once('exit', () => reject(new Error('it ended at once')))
      setTimeout(() => reject(new Error('it took too long')), START_MS).unref()
    })
    const [pid] = await childrenOf(child.pid!)
    const first = pid === undefined ? undefined : await identify(pid)
    if (first === undefined) throw new Error('it ended at once')
    return first
  } catch (cause) {
    child.kill('SIGKILL')
    throw new RolloutError('runtime.start-failed', 'Cannot make a process namespace', { cause })
  }
}

async function copyTree(from: string, to: string): Promise<void> {
  const { exitCode, stderr } = await runProgram(['cp', '-a', '--reflink=auto', '--', from, to], { env: HOST_ENV })
  if (exitCode !== 0) throw new RolloutError('runtime.copy-failed', `Cannot copy ${from}: ${stderr.trim()}`)
}

function unsupported(what: string): RolloutError {
  return new RolloutError('runtime.unsupported', `local has no ${what}; use another runtime`)
}
