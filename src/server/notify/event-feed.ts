import type { Logger } from 'pino'
import type { Clock } from '../../lib/async/clock.ts'
import type { EventPage, StoredEvent } from '../../store/dispatch/queries/events.ts'

export interface EventFeedDeps {
  read(query: { after?: string; limit: number; taskId?: string }): Promise<EventPage>
  /** The place behind all that may be given out now. */
  newest(): Promise<string>
  clock: Clock
  logger: Logger
}

export interface Subscription {
  /** The last event that was heard; absent: only what happens from now on. */
  after?: string
  /** Only events of this task. */
  taskId?: string
  /** Ends it. */
  signal: AbortSignal
}

export type FeedItem =
  /** Where the subscription begins: whoever comes back with it has missed nothing. */
  | { kind: 'hello'; cursor: string }
  /** Nothing happened for a while; all up to here was looked at. */
  | { kind: 'ping'; cursor: string }
  | { kind: 'event'; event: StoredEvent }

const PAGE = 500
/** Kept for those who are a little behind. Whoever is further behind reads the table. */
const MOST_RECENT = 5000
const PING_MS = 15_000
/** When nobody rang: a notification may be lost. */
const RECHECK_MS = 2000
/** When an event has to wait for a transaction that is still open; that one need not ring when it ends. */
const RECHECK_SOON_MS = [5, 20, 100, 300]

/**
 * One reader of the table of events for all who listen, and none while nobody does. A subscriber is no more than a place
 * in the order and pulls what follows it, from what was read lately or else from the table; so nothing is kept for a slow
 * one, and none can miss an event or hear it twice.
 */
export class EventFeed implements AsyncDisposable {
  readonly #deps: EventFeedDeps
  readonly #stopped = new AbortController()
  /** In order, without a gap: all that happened between `#from` and `#last`. */
  #recent: StoredEvent[] = []
  #from: string
  #last: string
  #news = Promise.withResolvers<void>()
  #reading: Promise<void> | undefined
  #isRung = false
  #listeners = 0
  /** The first to listen after a while passes over what nobody waited for. */
  #waking: Promise<void> | undefined
  /** In a row, with something that could not be given out yet. */
  #looksBehind = 0
  #stopTimer: (() => void) | undefined

  private constructor(deps: EventFeedDeps, newest: string) {
    this.#deps = deps
    this.#from = newest
    this.#last = newest
  }

  static async start(deps: EventFeedDeps): Promise<EventFeed> {
    return new EventFeed(deps, await deps.newest())
  }

  /** There may be something new. */
  ring(): void {
    this.#isRung = true
    if (this.#stopped.signal.aborted || this.#listeners === 0) return
    if (this.#reading !== undefined || this.#waking !== undefined) return
    this.#reading = this.#readAll().finally(() => {
      this.#reading = undefined
      if (this.#isRung) this.ring()
      else this.#lookLater()
    })
  }

  /** Whoever does not pull hears nothing, and costs nothing. */
  async *subscribe({ after, taskId, signal }: Subscription): AsyncGenerator<FeedItem, void, undefined> {
    const ended = AbortSignal.any([signal, this.#stopped.signal])
    using _listening = await this.#enter()
    let place = await this.#beginAt(after)
    yield { kind: 'hello', cursor: place }
    while (!ended.aborted) {
      const news = this.#news.promise
      const { events, next } = await this.#readAfter(place, taskId)
      for (const event of events) {
        if (ended.aborted) return
        yield { kind: 'event', event }
      }
      const isMore = next !== place
      place = next
      if (isMore) continue
      if (!(await this.#waitFor(news, ended)) && !ended.aborted) yield { kind: 'ping', cursor: place }
    }
  }

  async #enter(): Promise<Disposable> {
    this.#listeners += 1
    if (this.#listeners === 1) {
      this.#waking ??= this.#passOver().finally(() => {
        this.#waking = undefined
        this.ring()
      })
    }
    await this.#waking
    return {
      [Symbol.dispose]: () => {
        this.#listeners -= 1
        if (this.#listeners === 0) this.#stopTimer?.()
      },
    }
  }

  async #passOver(): Promise<void> {
    await this.#reading
    try {
      const newest = await this.#deps.newest()
      if (!isBefore(this.#last, newest)) return
      this.#recent = []
      this.#from = newest
      this.#last = newest
    } catch (error) {
      // Then it is all heard from where it was: too much, but nothing is missed.
      this.#deps.logger.debug({ err: error }, 'the newest event could not be looked up')
    }
  }

  /** A place that was never reached belongs to a database that is gone: all there is, is new to whoever comes with it. */
  async #beginAt(after: string | undefined): Promise<string> {
    if (after === undefined) return this.#last
    if (!isPlace(after)) return START
    // Another server may be a little ahead of us.
    return isBefore(this.#last, after) && isBefore(await this.#deps.newest(), after) ? START : after
  }

  async #readAfter(place: string, taskId: string | undefined): Promise<Pick<EventPage, 'events' | 'next'>> {
    if (isBefore(place, this.#from)) {
      return this.#deps.read({ after: place, limit: PAGE, ...(taskId !== undefined && { taskId }) })
    }
    const first = firstAfter(this.#recent, place)
    const page = this.#recent.slice(first, first + PAGE)
    const events = taskId === undefined ? page : page.filter(({ data }) => data['task_id'] === taskId)
    if (page.length === PAGE) return { events, next: page.at(-1)!.cursor }
    return { events, next: isBefore(place, this.#last) ? this.#last : place }
  }

  /** Whether there was news before it was time for a ping. */
  async #waitFor(news: Promise<void>, signal: AbortSignal): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const end = (): void => resolve(false)
    const stop = this.#deps.clock.after(PING_MS, end)
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
    void news.then(() => resolve(true))
    const isNews = await promise
    stop()
    signal.removeEventListener('abort', end)
    return isNews
  }

  #lookLater(): void {
    this.#stopTimer?.()
    if (this.#stopped.signal.aborted || this.#listeners === 0) return
    const soon = this.#looksBehind === 0 ? undefined : RECHECK_SOON_MS[this.#looksBehind - 1]
    this.#stopTimer = this.#deps.clock.after(soon ?? RECHECK_MS, () => this.ring())
  }

  async #readAll(): Promise<void> {
    try {
      while (this.#isRung && !this.#stopped.signal.aborted) {
        this.#isRung = false
        const page = await this.#deps.read({ after: this.#last, limit: PAGE })
        this.#add(page)
        this.#looksBehind = page.isBehind ? this.#looksBehind + 1 : 0
        if (page.events.length === PAGE) this.#isRung = true
      }
    } catch (error) {
      // The database is away, or busy: it is asked again by the timer.
      this.#isRung = false
      this.#deps.logger.debug({ err: error }, 'events could not be read')
    }
  }

  #add({ events, next }: EventPage): void {
    if (isBefore(this.#last, next)) this.#last = next
    if (events.length === 0) return
    this.#recent.push(...events)
    if (this.#recent.length > MOST_RECENT) {
      const dropped = this.#recent.splice(0, this.#recent.length - MOST_RECENT / 2)
      this.#from = dropped.at(-1)!.cursor
    }
    const news = this.#news
    this.#news = Promise.withResolvers()
    news.resolve()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort()
    this.#stopTimer?.()
    await this.#waking
    await this.#reading
  }
}

/** Before any event. */
const START = '0-0'

function isPlace(text: string): boolean {
  return /^\d{1,15}-\d{1,15}$/.test(text)
}

function isBefore(a: string, b: string): boolean {
  const [a1, a2] = a.split('-').map(Number) as [number, number]
  const [b1, b2] = b.split('-').map(Number) as [number, number]
  return a1 < b1 || (a1 === b1 && a2 < b2)
}

/** The index of the first that follows this place. */
function firstAfter(events: readonly StoredEvent[], place: string): number {
  let low = 0
  let high = events.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (isBefore(place, events[middle]!.cursor)) high = middle
    else low = middle + 1
  }
  return low
}
