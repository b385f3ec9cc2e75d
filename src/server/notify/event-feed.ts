import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import { onAbort } from '../../lib/async/until-aborted.ts'
import { countLeading } from '../../lib/collections/count-leading.ts'
import type { EventPage, StoredEvent } from '../../store/dispatch/port.ts'

export interface EventFeedDeps {
  read(query: { after?: string; limit: number; taskId?: string }): Promise<EventPage>
  /** Returns the cursor after the newest readable event. */
  newestCursor(): Promise<string>
  clock: Clock
  logger: Logger
}

export interface FeedOptions {
  /** Cursor of the last event that the reader received; absent: only new events. */
  after?: string
  /** Only events of this task. */
  taskId?: string
  /** Ends the subscription. */
  signal: AbortSignal
}

export type FeedItem =
  /** Start of the subscription; a reader that reconnects with this cursor misses nothing. */
  | { kind: 'hello'; cursor: string }
  /** No event for a while; everything up to this cursor was read. */
  | { kind: 'ping'; cursor: string }
  | { kind: 'event'; event: StoredEvent }

const PAGE = 500
/** Events in memory for readers that are slightly behind. Readers that are further behind read the table. */
const MAX_RECENT = 5000
const PING_MS = 15_000
/** Poll interval: a notification may be lost. */
const RECHECK_MS = 2000
/** Poll intervals while events wait for an older transaction, which may end without a notification. */
const RECHECK_SOON_MS = [5, 20, 100, 300]

/**
 * Reads the event table once for all subscribers, and not at all without subscribers. A subscriber is only a cursor: it pulls
 * the events after it from memory or from the table. So a slow subscriber needs no buffer, and no subscriber misses an event
 * or gets it twice.
 */
export class EventFeed implements AsyncDisposable {
  readonly #deps: EventFeedDeps
  readonly #stopped = new AbortController()
  /** All events between the cursors `#from` and `#last`. */
  #recent: StoredEvent[] = []
  #from: string
  #last: string
  #changed = Promise.withResolvers<void>()
  #reading: Promise<void> | undefined
  #isNotified = false
  #subscribers = 0
  /** The first subscriber after a pause skips the events that no one read. */
  #resuming: Promise<void> | undefined
  /** Consecutive reads that found events of unfinished transactions. */
  #readsBehind = 0
  #stopTimer: (() => void) | undefined

  private constructor(deps: EventFeedDeps, newest: string) {
    this.#deps = deps
    this.#from = newest
    this.#last = newest
  }

  static async start(deps: EventFeedDeps): Promise<EventFeed> {
    return new EventFeed(deps, await deps.newestCursor())
  }

  /** There may be new events. */
  notify(): void {
    this.#isNotified = true
    if (this.#stopped.signal.aborted || this.#subscribers === 0) return
    if (this.#reading !== undefined || this.#resuming !== undefined) return
    this.#reading = this.#readAll().finally(() => {
      this.#reading = undefined
      if (this.#isNotified) this.notify()
      else this.#schedule()
    })
  }

  /** Reads only when the subscriber pulls. */
  async *subscribe({ after, taskId, signal }: FeedOptions): AsyncGenerator<FeedItem, void, undefined> {
    const ended = AbortSignal.any([signal, this.#stopped.signal])
    using _subscribed = await this.#enter()
    let cursor = await this.#startCursor(after)
    yield { kind: 'hello', cursor }
    while (!ended.aborted) {
      const changed = this.#changed.promise
      const { events, next } = await this.#readAfter(cursor, taskId)
      for (const event of events) {
        if (ended.aborted) return
        yield { kind: 'event', event }
      }
      const isMore = next !== cursor
      cursor = next
      if (isMore) continue
      if (!(await this.#waitFor(changed, ended)) && !ended.aborted) yield { kind: 'ping', cursor }
    }
  }

  async #enter(): Promise<Disposable> {
    this.#subscribers += 1
    if (this.#subscribers === 1) {
      this.#resuming ??= this.#skipUnread().finally(() => {
        this.#resuming = undefined
        this.notify()
      })
    }
    await this.#resuming
    return {
      [Symbol.dispose]: () => {
        this.#subscribers -= 1
        if (this.#subscribers === 0) this.#stopTimer?.()
      },
    }
  }

  async #skipUnread(): Promise<void> {
    await this.#reading
    try {
      const newest = await this.#deps.newestCursor()
      if (!isBefore(this.#last, newest)) return
      this.#recent = []
      this.#from = newest
      this.#last = newest
    } catch (error) {
      // The subscriber gets more events than necessary, but misses none.
      this.#deps.logger.debug({ err: error }, 'newest event cursor could not be read')
    }
  }

  /** A cursor beyond the newest event is of another database: the reader gets all events. */
  async #startCursor(after: string | undefined): Promise<string> {
    if (after === undefined) return this.#last
    if (!isCursor(after)) return START
    // The reader may come from another server that has read further.
    return isBefore(this.#last, after) && isBefore(await this.#deps.newestCursor(), after) ? START : after
  }

  async #readAfter(cursor: string, taskId: string | undefined): Promise<Pick<EventPage, 'events' | 'next'>> {
    if (isBefore(cursor, this.#from)) return this.#deps.read({ after: cursor, limit: PAGE, taskId })
    const first = countLeading(this.#recent.length, (at) => !isBefore(cursor, this.#recent[at]!.cursor))
    const page = this.#recent.slice(first, first + PAGE)
    const events = taskId === undefined ? page : page.filter(({ data }) => data['task_id'] === taskId)
    if (page.length === PAGE) return { events, next: page.at(-1)!.cursor }
    return { events, next: isBefore(cursor, this.#last) ? this.#last : cursor }
  }

  /** Whether new events were read before the ping was due. */
  async #waitFor(changed: Promise<void>, signal: AbortSignal): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const end = (): void => resolve(false)
    const stop = this.#deps.clock.after(PING_MS, end)
    using _ = onAbort(signal, end)
    void changed.then(() => resolve(true))
    const hasChanged = await promise
    stop()
    return hasChanged
  }

  #schedule(): void {
    this.#stopTimer?.()
    if (this.#stopped.signal.aborted || this.#subscribers === 0) return
    const soon = this.#readsBehind === 0 ? undefined : RECHECK_SOON_MS[this.#readsBehind - 1]
    this.#stopTimer = this.#deps.clock.after(soon ?? RECHECK_MS, () => this.notify())
  }

  async #readAll(): Promise<void> {
    try {
      while (this.#isNotified && !this.#stopped.signal.aborted) {
        this.#isNotified = false
        const page = await this.#deps.read({ after: this.#last, limit: PAGE })
        this.#add(page)
        this.#readsBehind = page.isBehind ? this.#readsBehind + 1 : 0
        if (page.events.length === PAGE) this.#isNotified = true
      }
    } catch (error) {
      // The database is unavailable or busy; the timer tries again.
      this.#isNotified = false
      this.#deps.logger.debug({ err: error }, 'events could not be read')
    }
  }

  #add({ events, next }: EventPage): void {
    if (isBefore(this.#last, next)) this.#last = next
    if (events.length === 0) return
    this.#recent.push(...events)
    if (this.#recent.length > MAX_RECENT) {
      const dropped = this.#recent.splice(0, this.#recent.length - MAX_RECENT / 2)
      this.#from = dropped.at(-1)!.cursor
    }
    const changed = this.#changed
    this.#changed = Promise.withResolvers()
    changed.resolve()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort()
    this.#stopTimer?.()
    await this.#resuming
    await this.#reading
  }
}

/** Cursor before the first event. */
const START = '0-0'

function isCursor(text: string): boolean {
  return /^\d{1,15}-\d{1,15}$/.test(text)
}

function isBefore(a: string, b: string): boolean {
  const [a1, a2] = a.split('-').map(Number) as [number, number]
  const [b1, b2] = b.split('-').map(Number) as [number, number]
  return a1 < b1 || (a1 === b1 && a2 < b2)
}
