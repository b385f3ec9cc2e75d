import { setTimeout as sleep } from 'node:timers/promises'
import { discardShell, type WaitingShell, type CommandNamespace } from './process/execution.ts'

/** When the next namespace is made after one was taken: not while the command that took it starts. */
const FILL_MS = 20
/** When a namespace is made ready again: not before its last command's result is on its way, which starting a program delays. */
const RENEW_MS = 3
/** An agent that runs one command after the other needs one to run in and one that is being made ready. */
const MAX_IDLE = 2

/** Where one command at a time can run, and nothing of it can hide. */
export interface ProcessNamespace {
  /** Whether nothing is left of what ran there; false whenever that is not certain. Asked when its first process has ended. */
  isEmpty(): Promise<boolean>
  /** Ends it, with all that is there; resolves when nothing is left. */
  end(): Promise<void>
}

interface PoolDeps<P extends ProcessNamespace> {
  make(): Promise<P>
  /** Brings a shell to a namespace where nobody else is. */
  enter(namespace: P): Promise<WaitingShell>
}

interface Prepared<P extends ProcessNamespace> {
  namespace: P
  shell: WaitingShell
}

interface Idle<P extends ProcessNamespace> {
  prepared: Promise<Prepared<P> | undefined>
  isReady: boolean
}

/**
 * Rooms that are ready before a command needs one. Making a namespace takes longer than most commands, so one that a command
 * left as it found it serves the next; where anything was left, or may have been, the namespace ends with the command.
 */
export class NamespacePool<P extends ProcessNamespace> {
  readonly #deps: PoolDeps<P>
  readonly #idle: Idle<P>[] = []
  #wanted = 1
  #isClosed = false

  constructor(deps: PoolDeps<P>) {
    this.#deps = deps
    this.#fill()
  }

  async acquire(): Promise<CommandNamespace> {
    // Taken at once: whoever comes next must not get the same.
    const at = Math.max(
      0,
      this.#idle.findIndex(({ isReady }) => isReady),
    )
    const [found] = this.#idle.splice(at, 1)
    if (found?.isReady !== true) this.#wanted = MAX_IDLE
    const ready = await found?.prepared
    const isUsable = ready !== undefined && ready.shell.child.exitCode === null && ready.shell.child.signalCode === null
    if (ready !== undefined && !isUsable) await discard(ready)
    const prepared = isUsable ? ready : await this.#addShell(await this.#deps.make())
    setTimeout(() => this.#fill(), FILL_MS).unref()
    return this.#toCommandNamespace(prepared)
  }

  /** Ends those that nobody has taken. */
  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(
      this.#idle.splice(0).map(async ({ prepared }) => {
        const each = await prepared
        if (each !== undefined) await discard(each)
      }),
    )
  }

  #toCommandNamespace({ namespace, shell }: Prepared<P>): CommandNamespace {
    let closing: Promise<void> | undefined
    let isReclaimed = false
    return {
      shell,
      close: async () => {
        if (!isReclaimed) await (closing ??= namespace.end())
      },
      reclaim: async () => {
        if (this.#isClosed || closing !== undefined || !(await namespace.isEmpty())) return false
        // Somebody may have wanted its end meanwhile.
        if (closing !== undefined) return false
        if (this.#isClosed || this.#idle.length >= MAX_IDLE) return false
        isReclaimed = true
        this.#keep(sleep(RENEW_MS, namespace, { ref: false }))
        return true
      },
    }
  }

  #fill(): void {
    while (!this.#isClosed && this.#idle.length < this.#wanted) this.#keep(this.#deps.make())
  }

  #keep(making: Promise<P>): void {
    const idle: Idle<P> = { isReady: false, prepared: this.#prepare(making) }
    this.#idle.push(idle)
    void idle.prepared.then((prepared) => {
      idle.isReady = prepared !== undefined
    })
  }

  /** Undefined where it cannot be done; whoever wants it then tries again and is told why. */
  async #prepare(making: Promise<P>): Promise<Prepared<P> | undefined> {
    try {
      const namespace = await making
      if (!this.#isClosed) return await this.#addShell(namespace)
      await namespace.end()
    } catch {
      // As said above.
    }
    return undefined
  }

  async #addShell(namespace: P): Promise<Prepared<P>> {
    try {
      return { namespace, shell: await this.#deps.enter(namespace) }
    } catch (error) {
      await namespace.end()
      throw error
    }
  }
}

async function discard({ namespace, shell }: Prepared<ProcessNamespace>): Promise<void> {
  await namespace.end()
  discardShell(shell)
}
