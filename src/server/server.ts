import type { Logger } from 'pino'
import type { Clock } from '../lib/async/clock.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import type { IdSource } from '../model/ids.ts'
import { type Database, type DatabasePlace, openDatabase } from '../store/database.ts'
import { createDispatch, type RetentionPolicy } from '../store/dispatch/port.ts'
import { type Changes, openChanges } from '../store/dispatch/internal/changes.ts'
import { newestCursor, readEvents } from '../store/dispatch/queries/events.ts'
import { putQuota } from '../store/dispatch/queries/quotas.ts'
import { WORK_CHANNEL } from '../store/dispatch/internal/work-channel.ts'
import { openFileStore } from '../store/files.ts'
import type { CheckTask } from './routes/assert-tasks.ts'
import { type AccessOptions, createAccess } from './listen/access.ts'
import { createApp } from './app.ts'
import { NamedBells } from './notify/notifier.ts'
import { type CallbackOptions, type CallbackSender, startCallbacks } from './callbacks/callback-pump.ts'
import { createResultChecker } from './results/check-result.ts'
import { startChores } from './maintenance/maintenance-job.ts'
import type { ServerDeps } from './deps.ts'
import { EventFeed } from './notify/event-feed.ts'
import { LeaseDesk, type LeaseDeskDeps } from './notify/lease-queue.ts'
import { listen, type ListenLimits, type ListenOptions } from './listen/listen.ts'
import { openTaskResult } from './results/results.ts'
import { toChores } from './maintenance/server-maintenance.ts'
import { Waits } from './notify/long-polls.ts'

export interface QuotaSettings {
  maxQueuedSessions?: number
  maxRunningSessions?: number
}

export interface ServerOptions {
  database: DatabasePlace
  /** Results, artifacts and uploads under way. Servers that share a database share this, too. */
  filesDir: string
  listen: ListenOptions & Partial<ListenLimits>
  access: AccessOptions
  callbacks: CallbackOptions
  /** Finds mistakes in submitted tasks. Absent: nodes find them. */
  checkTask?: CheckTask
  /** How long a node may be silent before its work is given to others. Default 60 s. */
  leaseMs?: number
  /** By the name of a token. Set anew at every start; a token that is not named here keeps what it was given. */
  quotas?: Readonly<Record<string, QuotaSettings>>
  /** Which tasks that are over are deleted. Absent: none. */
  retention?: RetentionPolicy
  clock: Clock
  /** Milliseconds that only go forward, such as `performance.now`. */
  monotonic: () => number
  ids: IdSource
  logger: Logger
  /** Of Polar, for those who ask. */
  version?: string
  /** For tests: holds every answer against its schema. */
  checkAnswers?: boolean
}

const DEFAULT_LEASE_MS = 60_000
/** Of everybody, where nobody has a token. */
const OPEN_NAME = 'open'

/** Many sessions: takes tasks, gives them to nodes, keeps what they bring. Several may share one PostgreSQL. */
export class RolloutServer implements AsyncDisposable {
  /** As others on this machine reach it, without a slash at its end. */
  readonly url: string
  readonly #parts: AsyncDisposableStack
  readonly #waits: Waits

  private constructor(url: string, waits: Waits, parts: AsyncDisposableStack) {
    this.url = url
    this.#waits = waits
    this.#parts = parts
  }

  /** Callers that wait for news just now. */
  get waiting(): number {
    return this.#waits.count
  }

  /** Resolves once it answers. */
  static async start(options: ServerOptions): Promise<RolloutServer> {
    const { clock, monotonic, logger, leaseMs = DEFAULT_LEASE_MS } = options
    // What is wrong with the settings is said before anything is opened.
    const access = createAccess(options.access, options.listen.host)
    const callbackOptions = { ...options.callbacks, own: options.callbacks.own ?? new OwnAddresses() }
    await using parts = new AsyncDisposableStack()
    const database = parts.use(await openDatabase(options.database))
    const files = await openFileStore({ dir: options.filesDir, clock })
    await setQuotas(database, options.quotas)
    const changes = parts.use(await openChanges(database))
    const dispatch = createDispatch({ database, clock, monotonic, ids: options.ids, leaseMs, changes })
    const { db } = database
    const feed = parts.use(
      await EventFeed.start({ read: (query) => readEvents(db, query), newest: () => newestCursor(db), clock, logger }),
    )
    const bell = new NamedBells(clock)
    const overBell = new NamedBells(clock)
    const lease: LeaseDeskDeps['lease'] = (nodeId, room) => dispatch.lease(nodeId, room)
    // What it holds is lost a lease after it last renewed, and it may have asked for more a third of one later.
    const desk = new LeaseDesk({ lease, clock, monotonic, longestSilenceMs: leaseMs / 2 })
    const callbacks = parts.use(
      startCallbacks(callbackOptions, {
        db,
        openTaskResult: (taskId) => openTaskResult(taskId, { database, files, logger }),
        clock,
        logger,
      }),
    )
    parts.defer(await watch(database, changes, { desk, bell, overBell, feed, callbacks }))

    const closing = new AbortController()
    const waits = new Waits(closing.signal)
    const deps: ServerDeps = {
      database,
      dispatch,
      files,
      feed,
      bell,
      overBell,
      desk,
      waits,
      checker: parts.use(createResultChecker()),
      callbacks: callbackOptions,
      ...(options.checkTask === undefined ? {} : { checkTask: options.checkTask }),
      wakeCallbacks: () => callbacks.wake(),
      tokenNames: new Set(options.access.isOpen ? [OPEN_NAME] : options.access.tokens.map(({ name }) => name)),
      version: options.version ?? '',
      leaseMs,
      retention: options.retention,
      clock,
      monotonic,
      logger,
    }
    parts.use(startChores(toChores(deps), { clock, logger }))
    const listener = await listen(createApp(deps, { access, checkAnswers: options.checkAnswers }), options.listen)
    parts.defer(() => listener.close())
    callbackOptions.own.add(listener.url)
    // First of all when it closes: those who wait are answered, so that they are not what is waited for.
    parts.defer(() => closing.abort())
    return new RolloutServer(listener.url, waits, parts.move())
  }

  /** Takes nothing new, ends what is under way in order, and lets go of the database last. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync()
  }
}

async function setQuotas({ db }: Database, quotas: ServerOptions['quotas'] = {}): Promise<void> {
  for (const [owner, { maxQueuedSessions, maxRunningSessions }] of Object.entries(quotas)) {
    await putQuota(db, owner, { maxQueued: maxQueuedSessions ?? null, maxRunning: maxRunningSessions ?? null })
  }
}

interface Listeners {
  desk: LeaseDesk
  bell: NamedBells
  overBell: NamedBells
  feed: EventFeed
  callbacks: CallbackSender
}

/** Whoever waits is woken by what the database, and so any server on it, announces. */
async function watch(
  database: Database,
  changes: Changes,
  { desk, bell, overBell, feed, callbacks }: Listeners,
): Promise<() => Promise<void>> {
  const stopWork = await database.listen(WORK_CHANNEL, () => desk.ring())
  const stopChanges = changes.subscribe((taskIds, news) => {
    feed.ring()
    if (taskIds === 'all') bell.ringAll()
    else if (news !== 'moved') for (const taskId of taskIds) bell.ring(taskId)
    if (news !== 'over') return
    if (taskIds === 'all') overBell.ringAll()
    else for (const taskId of taskIds) overBell.ring(taskId)
    callbacks.wake()
  })
  return async () => {
    stopChanges()
    await stopWork()
  }
}
