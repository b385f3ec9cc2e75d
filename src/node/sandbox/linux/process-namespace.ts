import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../model/failure.ts'
import { firstChildOf, childrenOf, isAlive, type ProcessRef, signalProcess } from './process/processes.ts'
import type { RemoteSpawn, SpawnedProcess } from './process/spawner.ts'
import { readyLines, START_MS, untilExit } from './process/started.ts'

interface NamespaceParts {
  /** The process outside that created the namespace. */
  child: SpawnedProcess
  first: ProcessRef
  /** The child that the first process waits for, if any. */
  idle: ProcessRef | undefined
  /**
   * Whether commands cannot create processes that are not their own descendants; otherwise the namespace cannot be
   * known to be empty.
   */
  canTell: boolean
}

/** A process namespace of this machine. Runs one command at a time; no process of the command can leave it. */
export class HostedNamespace {
  readonly first: ProcessRef
  readonly #parts: NamespaceParts
  readonly #ended: Promise<void>

  /** `command` creates the namespace, waits for its first process and prints `ready`. */
  static async create(
    command: readonly string[],
    { spawn, env, canTell }: { spawn: RemoteSpawn; env: Record<string, string>; canTell: boolean },
  ): Promise<HostedNamespace> {
    const [file, ...args] = command
    const child = spawn(file!, args, { stdio: ['ignore', 'pipe', 'pipe'], env })
    try {
      await readyLines(child, ['ready'], AbortSignal.timeout(START_MS))
      const first = await firstChildOf(child.pid!)
      if (first === undefined) throw new Error('the process ended at once')
      return new HostedNamespace({ child, first, idle: await firstChildOf(first.pid), canTell })
    } catch (cause) {
      child.kill('SIGKILL')
      const reason = cause instanceof Error ? cause.message : String(cause)
      throw new RolloutError('runtime.gone', `Cannot start a command in the sandbox: ${reason}`, { cause })
    }
  }

  private constructor(parts: NamespaceParts) {
    this.first = parts.first
    this.#parts = parts
    this.#ended = untilExit(parts.child)
  }

  /**
   * Whether no process of the last command is left; false if that is not certain. Called after the command's first
   * process ended. A process whose parent ends becomes a child of the first process in the same step, and the seccomp filter rejects
   * CLONE_PARENT, so no process has a parent outside. Therefore, when the command has ended and the first process has
   * no child but its own, the namespace is empty.
   */
  async isEmpty(): Promise<boolean> {
    const { canTell, idle } = this.#parts
    if (!canTell) return false
    const children = await childrenOf(this.first.pid)
    if (children.length !== (idle === undefined ? 0 : 1) || children[0] !== idle?.pid) return false
    return (idle === undefined || (await isAlive(idle))) && (await isAlive(this.first))
  }

  /** Kills all processes; resolves when none is left: the first process of a process namespace ends after all others. */
  async end(): Promise<void> {
    await signalProcess(this.first, 'SIGKILL')
    await this.#ended
    while (await isAlive(this.first)) await sleep(2)
  }
}
