import type { Logger } from 'pino'
import type { Handlers } from '../api/mount.ts'
import type { Routes } from '../api/routes/index.ts'
import type { Clock } from '../lib/async/clock.ts'
import type { Dispatch, RetentionPolicy } from '../store/dispatch/port.ts'
import type { FileStore } from '../store/files.ts'
import type { CallbackOptions } from './callbacks/callback-sender.ts'
import type { Caller } from './listen/access.ts'
import type { EventFeed } from './notify/event-feed.ts'
import type { KeyedNotifier } from './notify/keyed-notifier.ts'
import type { LeaseQueue } from './notify/lease-queue.ts'
import type { LongPolls } from './notify/long-polls.ts'
import type { ResultChecker } from './results/check-result.ts'
import type { CheckTask } from './routes/assert-tasks.ts'

/** Dependencies of the route handlers. */
export interface ServerDeps {
  dispatch: Dispatch
  files: FileStore
  feed: EventFeed
  /** Notifies a task id when a session of the task may have ended, or the task may have changed otherwise. */
  taskChanges: KeyedNotifier
  /** Notifies a task id only when the task itself may have ended, so that its waiters need not read every session's end. */
  taskEnds: KeyedNotifier
  /** Notifies `state` when the policy state may have changed, and `nodes` when nodes may have confirmed it. */
  policyNotices: KeyedNotifier
  leaseQueue: LeaseQueue
  longPolls: LongPolls
  checker: ResultChecker
  callbacks: CallbackOptions
  /** Absent: only nodes check tasks. */
  checkTask?: CheckTask
  /** A callback may be due now. */
  wakeCallbacks: () => void
  /** Names of all access tokens. */
  tokenNames: ReadonlySet<string>
  /** Version of Polar. */
  version: string
  leaseMs: number
  /** Absent: tasks are kept until a request deletes them. */
  retention?: RetentionPolicy
  clock: Clock
  monotonic: () => number
  logger: Logger
}

/** The handlers of some routes. */
export type Some<Name extends keyof Routes> = Pick<Handlers<Routes, Caller>, Name>
