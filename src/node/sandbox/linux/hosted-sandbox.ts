import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises'
import { dirname, isAbsolute, join, normalize } from 'node:path/posix'
import { describeError, errnoOf } from '../../../lib/fs/errno.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { CopyLimits, Execution, ExecSpec, Sandbox, SandboxStats } from '../runtimes/runtime.ts'
import type { Cgroup } from './limits/cgroups.ts'
import type { WatchedMemory } from './limits/memory-watch.ts'
import { discardShell, startInNamespace, type CommandNamespace } from './process/execution.ts'
import type { CleanSpawn } from './process/clean-spawn.ts'
import { RAISE_OOM_SCORE } from './limits/oom-score.ts'
import { HOST_ENV } from './files/paths.ts'
import { childrenOf, identify, signalProcess } from './process/processes.ts'
import type { Records, SandboxRecord } from './records.ts'
import { downloadFrom, readFileFrom, uploadTo, writeFileTo, type HelperProcess } from './files/transfers.ts'

const STDERR_BYTES = 8 * 1024

/** Operations that differ between kinds of sandboxes whose processes are processes of this machine. */
export interface SandboxProcess {
  /** Stored on disk; `renew` updates it. */
  record: SandboxRecord
  folder: string
  workdir: string
  socketPort: number | undefined
  /** Environment of every command. */
  env: Readonly<Record<string, string>>
  isAlive(): boolean
  /** Creates the namespace of one command and all its descendants. */
  openNamespace(): Promise<CommandNamespace>
  /**
   * Command prefix that runs a helper program inside, where no command can signal it; undefined if the sandbox has no
   * file system of its own.
   */
  toolPrefix(): readonly string[] | undefined
  countOutOfMemory(): Promise<number | undefined>
  stats(): Promise<SandboxStats>
  /** Ends all processes and closes the socket. */
  freeze(): Promise<void>
  snapshot(name: string): Promise<void>
  /** Ends all processes and removes the sandbox. Called once. */
  close(): Promise<void>
}

/** Measures the resources of a sandbox. */
export interface Counters {
  cgroup: Cgroup | undefined
  /** Present if memory is limited without a control group. */
  memory: WatchedMemory | undefined
}

/** Combines the counters and the output of `du -sk`. */
export async function readStats({ cgroup, memory }: Counters, du: string): Promise<SandboxStats> {
  const kilobytes = Number.parseInt(du, 10)
  const counted = await cgroup?.stats()
  const memoryBytes = await memory?.measure()
  return {
    ...counted,
    ...(memoryBytes !== undefined && { memoryBytes }),
    diskBytes: Number.isSafeInteger(kilobytes) ? kilobytes * 1024 : undefined,
  }
}

/** Number of processes that were killed for lack of memory; undefined if unknown. */
export async function countKills({ cgroup, memory }: Counters): Promise<number | undefined> {
  return memory === undefined ? cgroup?.countOutOfMemory() : memory.kills
}

export interface HostedDeps {
  records: Records
  spawn: CleanSpawn
  now(): number
}

/** A sandbox whose processes this machine can see and signal. */
export class HostedSandbox implements Sandbox {
  readonly #process: SandboxProcess
  readonly #deps: HostedDeps
  readonly #namespaces = new Set<CommandNamespace>()
  #execs = 0
  #isFrozen = false
  #stopping: Promise<void> | undefined

  constructor(process: SandboxProcess, deps: HostedDeps) {
    this.#process = process
    this.#deps = deps
  }

  get id(): string {
    return this.#process.record.id
  }

  get workdir(): string {
    return this.#process.workdir
  }

  get socketPort(): number | undefined {
    return this.#process.socketPort
  }

  async exec(spec: ExecSpec): Promise<Execution> {
    this.#assertAlive()
    if (this.#isFrozen) throw new RolloutError('runtime.gone', `Sandbox ${this.id} is frozen and runs no commands`)
    const folder = join(this.#process.folder, 'exec')
    await mkdir(folder, { recursive: true, mode: 0o700 })
    const namespace = await this.#process.openNamespace()
    this.#namespaces.add(namespace)
    const tracked: CommandNamespace = {
      ...namespace,
      close: async () => {
        await namespace.close()
        this.#namespaces.delete(namespace)
      },
      reclaim: async () => {
        const isReclaimed = (await namespace.reclaim?.()) === true
        if (isReclaimed) this.#namespaces.delete(namespace)
        return isReclaimed
      },
    }
    // The sandbox may have been stopped while the namespace was created.
    if (this.#stopping !== undefined || this.#isFrozen) {
      await tracked.close()
      discardShell(namespace.shell)
      this.#assertAlive()
      throw new RolloutError('runtime.gone', `Sandbox ${this.id} is frozen and runs no commands`)
    }
    return startInNamespace(
      { ...spec, cwd: this.#path(spec.cwd ?? '.'), env: { ...this.#process.env, ...spec.env } },
      {
        id: `x${(this.#execs += 1)}`,
        folder,
        namespace: tracked,
        countOutOfMemory: () => this.#process.countOutOfMemory(),
        now: () => this.#deps.now(),
      },
    )
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await uploadTo(this.#startHelper, source, this.#path(target), signal)
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await downloadFrom(this.#startHelper, this.#path(source), target, limits, signal)
  }

  async writeFile(path: string, data: string | Uint8Array, options: { mode?: number } = {}): Promise<void> {
    this.#assertAlive()
    const [place, mode] = [this.#path(path), options.mode ?? 0o644]
    if (this.#process.toolPrefix() === undefined) await replaceFile(place, data, mode)
    else await writeFileTo(this.#startHelper, place, data, mode)
  }

  async readFile(path: string, options: { maxBytes: number }): Promise<Buffer> {
    this.#assertAlive()
    return readFileFrom(this.#startHelper, this.#path(path), options.maxBytes)
  }

  async stats(): Promise<SandboxStats> {
    this.#assertAlive()
    return this.#process.stats()
  }

  async renew(leaseUntil: number): Promise<void> {
    this.#assertAlive()
    this.#process.record.leaseUntil = leaseUntil
    await this.#deps.records.write(this.#process.record)
  }

  async snapshot(name: string): Promise<void> {
    this.#assertAlive()
    await this.#process.snapshot(name)
  }

  async freeze(): Promise<void> {
    this.#assertAlive()
    this.#isFrozen = true
    await Promise.all([...this.#namespaces].map((namespace) => namespace.close()))
    this.#namespaces.clear()
    await this.#process.freeze()
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#end()
    return this.#stopping
  }

  async #end(): Promise<void> {
    await Promise.all([...this.#namespaces].map((namespace) => namespace.close()))
    await this.#process.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  #path(path: string): string {
    return isAbsolute(path) ? normalize(path) : join(this.#process.workdir, path)
  }

  #assertAlive(): void {
    if (this.#stopping !== undefined) throw new RolloutError('runtime.gone', `Sandbox ${this.id} was stopped`)
    if (!this.#process.isAlive()) throw new RolloutError('runtime.gone', `Sandbox ${this.id} has ended unexpectedly`)
  }

  readonly #startHelper = (command: readonly [string, ...string[]]): HelperProcess => {
    const [file, ...args] = [...(this.#process.toolPrefix() ?? []), ...command]
    const stdio: 'pipe'[] = ['pipe', 'pipe', 'pipe']
    const child = this.#deps.spawn(file!, args, { stdio, env: HOST_ENV, detached: true })
    const { stdin, stdout } = child as ChildProcessWithoutNullStreams
    let stderr = ''
    child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-STDERR_BYTES)))
    stdin.on('error', () => stdin.destroy())
    const ended = new Promise<{ exitCode: number; stderr: string }>((resolve) => {
      child.once('close', (code) => resolve({ exitCode: code ?? 128, stderr }))
      child.once('error', (error) => resolve({ exitCode: 127, stderr: error.message }))
    })
    const kill = () => {
      // The output has no reader any more, and the helper would wait for one.
      stdout.destroy()
      void killWithChildren(child.pid)
    }
    return { stdin, stdout, ended, kill }
  }
}

/**
 * Does the same as `writeFileTo`, for files of this machine. Removes an existing file or link instead of writing to it.
 */
async function replaceFile(path: string, data: string | Uint8Array, mode: number): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true })
    await rm(path, { recursive: true, force: true })
    await writeFile(path, data, { flag: 'wx', mode: 0o600 })
    await chmod(path, mode)
  } catch (error) {
    const code = errnoOf(error) === 'ENOSPC' ? 'runtime.out-of-disk' : 'runtime.copy-failed'
    throw new RolloutError(code, `Writing ${path} failed: ${describeError(error)}`, { cause: error })
  }
}

/** The helper program is a child of the process that entered the sandbox. */
async function killWithChildren(pid: number | undefined): Promise<void> {
  if (pid === undefined) return
  for (const each of [...(await childrenOf(pid)), pid]) {
    const ref = await identify(each)
    if (ref !== undefined) await signalProcess(ref, 'SIGKILL')
  }
}

/** Command prefix that raises the out-of-memory score and joins control groups. */
export function joinPrefix(files: readonly string[]): string[] {
  const enter = 'while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 125; shift; n=$((n-1)); done'
  const script = `n=$1; shift; ${RAISE_OOM_SCORE}; ${enter}; exec "$@"`
  return ['/bin/sh', '-c', script, 'sh', String(files.length), ...files]
}
