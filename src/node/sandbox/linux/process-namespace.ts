import { setTimeout as sleep } from 'node:timers/promises'
import { childrenOf, isAlive, type ProcessRef, signalProcess } from './process/processes.ts'
import type { ProcessNamespace } from './namespace-pool.ts'
import type { SpawnedProcess } from './process/spawner.ts'
import { endOf } from './process/started.ts'

interface NamespaceParts {
  /** What made it, outside. */
  child: SpawnedProcess
  first: ProcessRef
  /** What the first process waits for, if anything. */
  idle?: ProcessRef | undefined
  /** Whether no command can make children that are not its own: else no namespace can be told to be empty. */
  canTell: boolean
}

/** A process namespace. */
export class HostedNamespace implements ProcessNamespace {
  readonly first: ProcessRef
  readonly #parts: NamespaceParts
  readonly #ended: Promise<void>

  constructor(parts: NamespaceParts) {
    this.first = parts.first
    this.#parts = parts
    this.#ended = endOf(parts.child)
  }

  /**
   * Whoever outlives his parent here becomes a child of the first process, in the same step in which the parent ends; and
   * there is no child of anybody outside, which the filter of system calls refuses. So when the command is gone, and the
   * first process has no child but its own, nobody is there.
   */
  async isEmpty(): Promise<boolean> {
    const { canTell, idle } = this.#parts
    if (!canTell) return false
    const children = await childrenOf(this.first.pid)
    if (children.length !== (idle === undefined ? 0 : 1) || children[0] !== idle?.pid) return false
    return (idle === undefined || (await isAlive(idle))) && (await isAlive(this.first))
  }

  /** The first process of a process namespace is gone only after all others. */
  async end(): Promise<void> {
    await signalProcess(this.first, 'SIGKILL')
    await this.#ended
    while (await isAlive(this.first)) await sleep(2)
  }
}
