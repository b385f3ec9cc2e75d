import type { Logger } from 'pino'
import type { Clock } from '../lib/async/clock.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import type { IdSource } from '../model/ids.ts'
import { type DatabaseLocation, Dispatch, type RetentionPolicy } from '../store/dispatch/port.ts'
import { openFileStore } from '../store/files.ts'
import { createApp } from './app.ts'
import { type CallbackOptions, CallbackSender } from './callbacks/callback-sender.ts'
import type { ServerDeps } from './deps.ts'
import { type AccessOptions, createAccess } from './listen/access.ts'
import { listen, type ListenLimits, type ListenOptions } from './listen/listen.ts'
import { maintenanceJobs } from './maintenance/maintenance-jobs.ts'
import { startMaintenance } from './maintenance/start-maintenance.ts'
import { EventFeed } from './notify/event-feed.ts'
import { KeyedNotifier } from './notify/keyed-notifier.ts'
import { LeaseQueue } from './notify/lease-queue.ts'
import { LongPolls } from './notify/long-polls.ts'
import { createResultChecker } from './results/check-result.ts'
import { openTaskResult } from './results/results.ts'
import type { CheckTask } from './routes/assert-tasks.ts'

export interface QuotaSettings {
  maxQueuedSessions?: number
  maxRunningSessions?: number
}

export interface ServerOptions {
  database: DatabaseLocation
  /** Folder of results, artifacts and unfinished uploads. Servers that share a database must share this folder. */
  filesDir: string
  listen: ListenOptions & Partial<ListenLimits>
  access: AccessOptions
  callbacks: CallbackOptions
  /** Validates submitted tasks. Absent: only nodes check them. */
  checkTask?: CheckTask
  /** A node that does not renew for this time loses its leases. Default 60 s. */
  leaseMs?: number
  /** By token name. Set at every start; a token that is not listed keeps its quota. */
  quotas?: Readonly<Record<string, QuotaSettings>>
  /** Limits on finished tasks. Absent: no task is deleted. */
  retention?: RetentionPolicy
  clock: Clock
  /** Monotonic milliseconds, such as `performance.now`. */
  monotonic: () => number
  ids: IdSource
  logger: Logger
  /** Version of Polar, shown in the API. */
  version?: string
  /** For tests: validates every response against its schema. */
  checkAnswers?: boolean
}

const DEFAULT_LEASE_MS = 60_000
/** Token name of all callers of a server without tokens. */
const OPEN_NAME = 'open'

/** Accepts tasks, leases their sessions to nodes and stores the results. Several servers may share one PostgreSQL. */
export class RolloutServer implements AsyncDisposable {
  /** Reachable from this machine, without a trailing slash. */
  readonly url: string
  readonly #parts: AsyncDisposableStack
  readonly #longPolls: LongPolls

  private constructor(url: string, longPolls: LongPolls, parts: AsyncDisposableStack) {
    this.url = url
    this.#longPolls = longPolls
    this.#parts = parts
  }

  /** Number of open long polls and event streams. */
  get waiting(): number {
    return this.#longPolls.count
  }

  /** Resolves once the server accepts requests. */
  static async start(options: ServerOptions): Promise<RolloutServer> {
    const { clock, monotonic, ids, logger, leaseMs = DEFAULT_LEASE_MS } = options
    // Invalid settings are reported before anything is opened.
    const access = createAccess(options.access, options.listen.host)
    const callbackOptions = { ...options.callbacks, own: options.callbacks.own ?? new OwnAddresses() }
    await using parts = new AsyncDisposableStack()
    const dispatch = parts.use(await Dispatch.open(options.database, { clock, monotonic, ids, leaseMs }))
    const files = await openFileStore({ dir: options.filesDir, clock })
    await setQuotas(dispatch, options.quotas)
    const feed = parts.use(await EventFeed.start({ ...dispatch.events, clock, logger }))
    const taskChanges = new KeyedNotifier(clock)
    const taskEnds = new KeyedNotifier(clock)
    const policyNotices = new KeyedNotifier(clock)
    const leaseQueue = new LeaseQueue({
      lease: (nodeId, request) => dispatch.lease(nodeId, request),
      clock,
      monotonic,
      // A lease request may arrive a third of a lease after the last renewal, and the leases expire a lease after it.
      maxSilenceMs: leaseMs / 2,
    })
    const openResult = (taskId: string) => openTaskResult(taskId, { dispatch, files, logger })
    const callbacks = parts.use(
      new CallbackSender(callbackOptions, { dispatch, openTaskResult: openResult, clock, logger }),
    )
    parts.defer(
      await connectNotifications(dispatch, { leaseQueue, taskChanges, taskEnds, policyNotices, feed, callbacks }),
    )

    const closing = new AbortController()
    const longPolls = new LongPolls(closing.signal)
    const deps: ServerDeps = {
      dispatch,
      files,
      feed,
      taskChanges,
      taskEnds,
      policyNotices,
      leaseQueue,
      longPolls,
      checker: parts.use(createResultChecker()),
      callbacks: callbackOptions,
      checkTask: options.checkTask,
      wakeCallbacks: () => callbacks.wake(),
      tokenNames: new Set(options.access.isOpen ? [OPEN_NAME] : options.access.tokens.map(({ name }) => name)),
      version: options.version ?? '',
      leaseMs,
      retention: options.retention,
      clock,
      monotonic,
      logger,
    }
    parts.use(startMaintenance(maintenanceJobs(deps), { clock, logger }))
    const listener = await listen(createApp(deps, { access, checkAnswers: options.checkAnswers }), options.listen)
    parts.defer(() => listener.close())
    callbackOptions.own.add(listener.url)
    // Runs first on close: long polls must end before the listener waits for open responses.
    parts.defer(() => closing.abort())
    return new RolloutServer(listener.url, longPolls, parts.move())
  }

  /** Accepts no new requests, finishes running ones and closes the database last. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync()
  }
}

async function setQuotas(dispatch: Dispatch, quotas: ServerOptions['quotas'] = {}): Promise<void> {
  for (const [owner, { maxQueuedSessions, maxRunningSessions }] of Object.entries(quotas)) {
    await dispatch.putQuota(owner, { maxQueued: maxQueuedSessions ?? null, maxRunning: maxRunningSessions ?? null })
  }
}

interface Notified {
  leaseQueue: LeaseQueue
  taskChanges: KeyedNotifier
  taskEnds: KeyedNotifier
  policyNotices: KeyedNotifier
  feed: EventFeed
  callbacks: CallbackSender
}

/** Passes notifications of the database, and so of any server that shares it, to everything in this server that waits. */
async function connectNotifications(
  dispatch: Dispatch,
  { leaseQueue, taskChanges, taskEnds, policyNotices, feed, callbacks }: Notified,
): Promise<() => Promise<void>> {
  const stopWork = await dispatch.onWork(() => leaseQueue.notify())
  const stopPolicy = await dispatch.onPolicy((notice) =>
    notice === 'all' ? policyNotices.notifyAll() : policyNotices.notify(notice),
  )
  const stopChanges = dispatch.onTaskChange((taskIds, kind) => {
    feed.notify()
    if (taskIds === 'all') taskChanges.notifyAll()
    else if (kind !== 'moved') for (const taskId of taskIds) taskChanges.notify(taskId)
    if (kind !== 'over') return
    if (taskIds === 'all') taskEnds.notifyAll()
    else for (const taskId of taskIds) taskEnds.notify(taskId)
    callbacks.wake()
  })
  return async () => {
    stopChanges()
    await stopPolicy()
    await stopWork()
  }
}
