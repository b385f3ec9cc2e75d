import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { chmod, mkdir, rm, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path/posix'
import { describeError, errnoOf } from '../../../lib/fs/errno.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { Execution, SandboxStats } from '../runtimes/runtime.ts'
import { BaseSandbox, type SandboxFiles, type SandboxParts } from './base-sandbox.ts'
import type { Cgroup } from './limits/cgroups.ts'
import type { WatchedMemory } from './limits/memory-watch.ts'
import { discardShell, startInNamespace, type CommandNamespace } from './process/execution.ts'
import type { CleanSpawn } from './process/clean-spawn.ts'
import { RAISE_OOM_SCORE } from './limits/oom-score.ts'
import { HOST_ENV } from './files/paths.ts'
import type { Pipes } from './process/pipes.ts'
import { childrenOf, identify, signalProcess } from './process/processes.ts'
import type { CompleteExecSpec } from './process/render-exec.ts'
import type { RemoteSpawn } from './process/spawner.ts'
import { downloadFrom, readFileFrom, uploadTo, writeFileTo, type HelperProcess } from './files/transfers.ts'

const STDERR_BYTES = 8 * 1024

export interface HostedParts extends SandboxParts {
  cgroup: Cgroup | undefined
  /** Present if memory is limited without a control group. */
  memory: WatchedMemory | undefined
  /** Starts helper programs. */
  helperSpawn: CleanSpawn
  /** Starts processes of the sandbox. */
  spawn: RemoteSpawn
  pipes: Pipes
  closeSockets(): void
  /** Removes what is left of the sandbox after its processes have ended. */
  discard(): Promise<void>
}

/** A sandbox whose processes this machine can see and signal. */
export abstract class HostedSandbox<Parts extends HostedParts> extends BaseSandbox<Parts> {
  protected readonly files: SandboxFiles = {
    upload: (source, target, signal) => uploadTo(this.#startHelper, source, target, signal),
    download: (source, target, limits, signal) => downloadFrom(this.#startHelper, source, target, limits, signal),
    writeFile: (path, data, mode) =>
      this.toolPrefix() === undefined
        ? replaceFile(path, data, mode)
        : writeFileTo(this.#startHelper, path, data, mode),
    readFile: (path, maxBytes) => readFileFrom(this.#startHelper, path, maxBytes),
  }
  readonly #namespaces = new Set<CommandNamespace>()

  protected abstract isAlive(): boolean
  /** Creates the namespace of one command and all its descendants. */
  protected abstract openNamespace(): Promise<CommandNamespace>
  /**
   * Command prefix that runs a helper program inside, where no command can signal it; undefined if the sandbox has no
   * file system of its own.
   */
  protected abstract toolPrefix(): readonly string[] | undefined
  /** Ends the processes that hold the namespaces of all commands. */
  protected endHolder?(): Promise<void>
  /** Output of `du -sk` for the files that the sandbox wrote. */
  protected abstract readUsage(): Promise<string>

  protected async startCommand(spec: CompleteExecSpec, at: { id: string; folder: string }): Promise<Execution> {
    const namespace = await this.openNamespace()
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
    if (this.isStopping || this.isFrozen) {
      await tracked.close()
      discardShell(namespace.shell)
      this.assertRunning()
    }
    return startInNamespace(spec, { ...at, namespace: tracked, countOutOfMemory: () => this.#countKills() })
  }

  protected async measure(): Promise<SandboxStats> {
    const { cgroup, memory } = this.parts
    const kilobytes = Number.parseInt(await this.readUsage(), 10)
    const counted = await cgroup?.stats()
    const memoryBytes = await memory?.measure()
    return {
      ...counted,
      ...(memoryBytes !== undefined && { memoryBytes }),
      diskBytes: Number.isSafeInteger(kilobytes) ? kilobytes * 1024 : undefined,
    }
  }

  protected async endProcesses(): Promise<void> {
    await Promise.all([...this.#namespaces].map((namespace) => namespace.close()))
    this.#namespaces.clear()
    this.parts.closeSockets()
  }

  protected async close(): Promise<void> {
    await Promise.all([...this.#namespaces].map((namespace) => namespace.close()))
    this.parts.closeSockets()
    this.parts.memory?.[Symbol.dispose]()
    await this.endHolder?.()
    await this.parts.discard()
  }

  protected override assertAlive(): void {
    super.assertAlive()
    if (!this.isAlive()) throw new RolloutError('runtime.gone', `Sandbox ${this.id} has ended unexpectedly`)
  }

  /** Number of processes that were killed for lack of memory; undefined if unknown. */
  async #countKills(): Promise<number | undefined> {
    const { cgroup, memory } = this.parts
    return memory === undefined ? cgroup?.countOutOfMemory() : memory.kills
  }

  readonly #startHelper = (command: readonly [string, ...string[]]): HelperProcess => {
    const [file, ...args] = [...(this.toolPrefix() ?? []), ...command]
    const stdio: 'pipe'[] = ['pipe', 'pipe', 'pipe']
    const child = this.parts.helperSpawn(file!, args, { stdio, env: HOST_ENV, detached: true })
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
