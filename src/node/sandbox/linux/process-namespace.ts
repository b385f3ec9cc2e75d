import { setTimeout as sleep } from 'node:timers/promises'
import { childrenOf, isAlive, type ProcessRef, signalProcess } from './process/processes.ts'
import type { ProcessNamespace } from './namespace-pool.ts'
import type { SpawnedProcess } from './process/spawner.ts'
import { untilExit } from './process/started.ts'

interface NamespaceParts {
  /** The process outside that created the namespace. */
  child: SpawnedProcess
  first: ProcessRef
  /** The child that the first process waits for, if any. */
  idle?: ProcessRef | undefined
  /**
   * Whether commands cannot create processes that are not their own descendants; otherwise the namespace cannot be
   * known to be empty.
   */
  canTell: boolean
}

/** A process namespace of this machine. */
export class HostedNamespace implements ProcessNamespace {
  readonly first: ProcessRef
  readonly #parts: NamespaceParts
  readonly #ended: Promise<void>

  constructor(parts: NamespaceParts) {
    this.first = parts.first
    this.#parts = parts
    this.#ended = untilExit(parts.child)
  }

  /**
   * A process whose parent ends becomes a child of the first process in the same step, and the seccomp filter rejects
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

  /** The first process of a process namespace ends after all others. */
  async end(): Promise<void> {
    await signalProcess(this.first, 'SIGKILL')
    await this.#ended
    while (await isAlive(this.first)) await sleep(2)
  }
}
