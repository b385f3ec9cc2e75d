import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'

export interface Turn extends Disposable {
  /** Aborted when somebody else takes over. */
  signal: AbortSignal
  /** Something happened: nobody takes over for another while. */
  progress(): void
}

interface Queue {
  holder: { abort: AbortController; lastProgress: number } | undefined
  waiting: (() => void)[]
}

/** A sender that came back over a new connection must not wait for the old one to be noticed as dead. */
const STALLED_MS = 5000

/** One at a time for each key; one that does nothing for some seconds is sent away when others wait. */
export class Turns {
  readonly #queues = new Map<string, Queue>()
  readonly #clock: Clock

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async take(key: string): Promise<Turn> {
    const queue = this.#queues.get(key) ?? { holder: undefined, waiting: [] }
    this.#queues.set(key, queue)
    if (queue.holder !== undefined) await this.#wait(queue)
    const abort = new AbortController()
    const holder = { abort, lastProgress: this.#clock.now() }
    queue.holder = holder
    return {
      signal: abort.signal,
      progress: () => void (holder.lastProgress = this.#clock.now()),
      [Symbol.dispose]: () => {
        const next = queue.waiting.shift()
        // Whoever is next holds it from here on, so that nobody who comes now gets in between.
        if (next !== undefined) return next()
        queue.holder = undefined
        this.#queues.delete(key)
      },
    }
  }

  #wait(queue: Queue): Promise<void> {
    return new Promise((resolve) => {
      let stop: () => void
      const watch = (): void => {
        const silent = this.#clock.now() - (queue.holder?.lastProgress ?? 0)
        if (silent >= STALLED_MS) queue.holder?.abort.abort(takenOver())
        stop = this.#clock.after(STALLED_MS, watch)
      }
      queue.waiting.push(() => {
        stop()
        resolve()
      })
      stop = this.#clock.after(STALLED_MS, watch)
    })
  }
}

function takenOver(): RolloutError {
  return new RolloutError(
    'request.conflict',
    'This part came to a standstill and was sent again; ask for the offset and go on from there.',
  )
}
