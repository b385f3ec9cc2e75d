interface TrackedCommand {
  /** Of its folder in the pod. */
  name: string
  /** Below it is the command. */
  waiter: number
  recorders: readonly number[]
}

/**
 * Which processes of a pod belong to which command, told apart by who started whom; kept here, where nothing in the pod
 * can change it. A process that cut that link belongs to nobody, and ends with the next command that ends; where two
 * commands run at once, it may have been the other's.
 */
export class PodProcesses {
  readonly #live = new Map<string, TrackedCommand>()
  readonly #names = new Map<string, string>()
  /** Left behind by commands that may leave something. */
  readonly #kept = new Set<number>()
  readonly #finished = new Set<string>()

  open(id: string, command: TrackedCommand): void {
    this.#live.set(id, command)
    this.#names.set(id, command.name)
  }

  nameOf(id: string): string {
    return this.#names.get(id) ?? id
  }

  /** Of all commands that run. */
  get waiters(): number[] {
    return [...this.#live.values()].map(({ waiter }) => waiter)
  }

  /** What must stay when that one ends: all others, and what takes down the end of its output. */
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

  /** What it left behind may stay, and what takes down what that says. */
  leave(id: string, pids: readonly number[]): void {
    for (const pid of [...(this.#live.get(id)?.recorders ?? []), ...pids]) this.#kept.add(pid)
    this.close(id)
  }

  /** Folders that nobody needs any more, each told once. */
  takeFinished(): string[] {
    const names = [...this.#finished]
    this.#finished.clear()
    return names
  }
}
