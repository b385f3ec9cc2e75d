import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'

/** Disposing releases the lock. */
export interface FileLock extends Disposable {
  /** Aborted when a waiter takes over. */
  signal: AbortSignal
  /** Delays a takeover. */
  progress(): void
}

interface Queue {
  holder: { abort: AbortController; lastProgress: number } | undefined
  waiting: (() => void)[]
}

/** A client that reconnects must not wait until its old connection is detected as dead. */
const STALLED_MS = 5000

/** One holder per key; a holder without progress for some seconds is aborted if others wait. */
export class FileMutex {
  readonly #queues = new Map<string, Queue>()
  readonly #clock: Clock

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async acquire(key: string): Promise<FileLock> {
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
        // Passes the lock to the next waiter directly, so that a new caller cannot acquire it in between.
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
        const idleMs = this.#clock.now() - (queue.holder?.lastProgress ?? 0)
        if (idleMs >= STALLED_MS) queue.holder?.abort.abort(takenOver())
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
    'The part stalled and was sent again; get the offset and continue from it.',
  )
}
