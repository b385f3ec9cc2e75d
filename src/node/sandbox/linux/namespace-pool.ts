import { setTimeout as sleep } from 'node:timers/promises'
import { discardEntry, type Entry, type Room } from './process/execution.ts'

/** When the next place is made after one was taken: not while the command that took it starts. */
const FILL_MS = 20
/** When a place is made ready again: not before its last command's result is on its way, which starting a program delays. */
const RENEW_MS = 3
/** An agent that runs one command after the other needs one to run in and one that is being made ready. */
const MAX_IDLE = 2

/** Where one command at a time can run, and nothing of it can hide. */
export interface Place {
  /** Whether nothing is left of what ran there; false whenever that is not certain. Asked when its first process has ended. */
  isEmpty(): Promise<boolean>
  /** Ends it, with all that is there; resolves when nothing is left. */
  end(): Promise<void>
}

interface PoolDeps<P extends Place> {
  make(): Promise<P>
  /** Brings a shell to a place where nobody else is. */
  enter(place: P): Promise<Entry>
}

interface Furnished<P extends Place> {
  place: P
  entry: Entry
}

interface Idle<P extends Place> {
  furnished: Promise<Furnished<P> | undefined>
  isReady: boolean
}

/**
 * Rooms that are ready before a command needs one. Making a place takes longer than most commands, so one that a command
 * left as it found it serves the next; where anything was left, or may have been, the place ends with the command.
 */
export class RoomPool<P extends Place> {
  readonly #deps: PoolDeps<P>
  readonly #idle: Idle<P>[] = []
  #wanted = 1
  #isClosed = false

  constructor(deps: PoolDeps<P>) {
    this.#deps = deps
    this.#fill()
  }

  async take(): Promise<Room> {
    // Taken at once: whoever comes next must not get the same.
    const at = Math.max(
      0,
      this.#idle.findIndex(({ isReady }) => isReady),
    )
    const [found] = this.#idle.splice(at, 1)
    if (found?.isReady !== true) this.#wanted = MAX_IDLE
    const ready = await found?.furnished
    const isUsable = ready !== undefined && ready.entry.child.exitCode === null && ready.entry.child.signalCode === null
    if (ready !== undefined && !isUsable) await discard(ready)
    const furnished = isUsable ? ready : await this.#furnish(await this.#deps.make())
    setTimeout(() => this.#fill(), FILL_MS).unref()
    return this.#toRoom(furnished)
  }

  /** Ends those that nobody has taken. */
  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(
      this.#idle.splice(0).map(async ({ furnished }) => {
        const each = await furnished
        if (each !== undefined) await discard(each)
      }),
    )
  }

  #toRoom({ place, entry }: Furnished<P>): Room {
    let closing: Promise<void> | undefined
    let isReclaimed = false
    return {
      entry,
      close: async () => {
        if (!isReclaimed) await (closing ??= place.end())
      },
      reclaim: async () => {
        if (this.#isClosed || closing !== undefined || !(await place.isEmpty())) return false
        // Somebody may have wanted its end meanwhile.
        if (closing !== undefined) return false
        if (this.#isClosed || this.#idle.length >= MAX_IDLE) return false
        isReclaimed = true
        this.#keep(sleep(RENEW_MS, place, { ref: false }))
        return true
      },
    }
  }

  #fill(): void {
    while (!this.#isClosed && this.#idle.length < this.#wanted) this.#keep(this.#deps.make())
  }

  #keep(making: Promise<P>): void {
    const idle: Idle<P> = { isReady: false, furnished: this.#prepare(making) }
    this.#idle.push(idle)
    void idle.furnished.then((furnished) => {
      idle.isReady = furnished !== undefined
    })
  }

  /** Undefined where it cannot be done; whoever wants it then tries again and is told why. */
  async #prepare(making: Promise<P>): Promise<Furnished<P> | undefined> {
    try {
      const place = await making
      if (!this.#isClosed) return await this.#furnish(place)
      await place.end()
    } catch {
      // As said above.
    }
    return undefined
  }

  async #furnish(place: P): Promise<Furnished<P>> {
    try {
      return { place, entry: await this.#deps.enter(place) }
    } catch (error) {
      await place.end()
      throw error
    }
  }
}

async function discard({ place, entry }: Furnished<Place>): Promise<void> {
  await place.end()
  discardEntry(entry)
}
