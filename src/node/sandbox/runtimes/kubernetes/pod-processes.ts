interface TrackedCommand {
  /** Name of the command's folder in the pod. */
  name: string
  /** Parent of the command's first process. */
  waiter: number
  recorders: readonly number[]
}

/**
 * Assigns processes of a pod to commands by their ancestors. The data is kept outside of the pod, where no command can
 * change it. An orphan belongs to no command and ends with the next command that ends, even if it belonged to a
 * concurrent one.
 */
export class PodProcesses {
  readonly #live = new Map<string, TrackedCommand>()
  readonly #names = new Map<string, string>()
  /** Processes that commands were permitted to leave behind. */
  readonly #kept = new Set<number>()
  readonly #finished = new Set<string>()

  open(id: string, command: TrackedCommand): void {
    this.#live.set(id, command)
    this.#names.set(id, command.name)
  }

  nameOf(id: string): string {
    return this.#names.get(id) ?? id
  }

  /** Waiters of all running commands. */
  get waiters(): number[] {
    return [...this.#live.values()].map(({ waiter }) => waiter)
  }

  /** Returns the processes that must survive the end of a command: all others, and its own output recorders. */
  rootsBeside(id: string): number[] {
    const own = this.#live.get(id)?.recorders ?? []
    const others = [...this.#live].filter(([other]) => other !== id).map(([, command]) => command)
    return [...own, ...others.flatMap(({ waiter, recorders }) => [waiter, ...recorders]), ...this.#kept]
  }

  close(id: string): void {
    const command = this.#live.get(id)
    if (!this.#live.delete(id) || command === undefined) return
    this.#finished.add(command.name)
  }

  /** Keeps the remaining processes of a command and the recorders of their output. */
  leave(id: string, pids: readonly number[]): void {
    for (const pid of [...(this.#live.get(id)?.recorders ?? []), ...pids]) this.#kept.add(pid)
    this.close(id)
  }

  /** Returns the folders of finished commands, each once. */
  takeFinished(): string[] {
    const names = [...this.#finished]
    this.#finished.clear()
    return names
  }
}
