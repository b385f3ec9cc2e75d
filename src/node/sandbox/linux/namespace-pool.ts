import { setTimeout as sleep } from 'node:timers/promises'
import type { HostedNamespace } from './process-namespace.ts'
import { discardShell, type WaitingShell, type CommandNamespace } from './process/execution.ts'

/**
 * Delay until the next namespace is created after one was acquired, so that it does not slow down the start of a
 * command.
 */
const FILL_MS = 20
/**
 * Delay until a reclaimed namespace gets its next shell, so that starting a program does not delay the last command's
 * result.
 */
const RENEW_MS = 3
/** An agent that runs one command after the other needs one namespace in use and one in preparation. */
const MAX_IDLE = 2

interface PoolDeps {
  make(): Promise<HostedNamespace>
  /** Starts a shell in an empty namespace. */
  enter(namespace: HostedNamespace): Promise<WaitingShell>
}

interface Prepared {
  namespace: HostedNamespace
  shell: WaitingShell
}

interface Idle {
  prepared: Promise<Prepared | undefined>
  isReady: boolean
}

/**
 * Keeps process namespaces ready. Creating a namespace takes longer than most commands, so a namespace that a command
 * left empty is reused; a namespace that is not certainly empty ends with its command.
 */
export class NamespacePool {
  readonly #deps: PoolDeps
  readonly #idle: Idle[] = []
  #targetIdle = 1
  #isClosed = false

  constructor(deps: PoolDeps) {
    this.#deps = deps
    this.#fill()
  }

  async acquire(): Promise<CommandNamespace> {
    // Removed from the list at once, so that no other caller gets the same namespace.
    const at = Math.max(
      0,
      this.#idle.findIndex(({ isReady }) => isReady),
    )
    const [found] = this.#idle.splice(at, 1)
    if (found?.isReady !== true) this.#targetIdle = MAX_IDLE
    const ready = await found?.prepared
    const isUsable = ready !== undefined && ready.shell.child.exitCode === null && ready.shell.child.signalCode === null
    if (ready !== undefined && !isUsable) await discard(ready)
    const prepared = isUsable ? ready : await this.#addShell(await this.#deps.make())
    setTimeout(() => this.#fill(), FILL_MS).unref()
    return this.#toCommandNamespace(prepared)
  }

  /** Ends the namespaces that are not in use. */
  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(
      this.#idle.splice(0).map(async ({ prepared }) => {
        const each = await prepared
        if (each !== undefined) await discard(each)
      }),
    )
  }

  #toCommandNamespace({ namespace, shell }: Prepared): CommandNamespace {
    let closing: Promise<void> | undefined
    let isReclaimed = false
    return {
      shell,
      close: async () => {
        if (!isReclaimed) await (closing ??= namespace.end())
      },
      reclaim: async () => {
        if (this.#isClosed || closing !== undefined || !(await namespace.isEmpty())) return false
        // `close` may have been called meanwhile.
        if (closing !== undefined) return false
        if (this.#isClosed || this.#idle.length >= MAX_IDLE) return false
        isReclaimed = true
        this.#keep(sleep(RENEW_MS, namespace, { ref: false }))
        return true
      },
    }
  }

  #fill(): void {
    while (!this.#isClosed && this.#idle.length < this.#targetIdle) this.#keep(this.#deps.make())
  }

  #keep(making: Promise<HostedNamespace>): void {
    const idle: Idle = { isReady: false, prepared: this.#prepare(making) }
    this.#idle.push(idle)
    void idle.prepared.then((prepared) => {
      idle.isReady = prepared !== undefined
    })
  }

  /** Undefined if preparation fails; `acquire` then tries again and throws the reason. */
  async #prepare(making: Promise<HostedNamespace>): Promise<Prepared | undefined> {
    try {
      const namespace = await making
      if (!this.#isClosed) return await this.#addShell(namespace)
      await namespace.end()
    } catch {
      // See above.
    }
    return undefined
  }

  async #addShell(namespace: HostedNamespace): Promise<Prepared> {
    try {
      return { namespace, shell: await this.#deps.enter(namespace) }
    } catch (error) {
      await namespace.end()
      throw error
    }
  }
}

async function discard({ namespace, shell }: Prepared): Promise<void> {
  await namespace.end()
  discardShell(shell)
}
