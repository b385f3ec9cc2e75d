import type { Logger } from 'pino'
import type { Handlers } from '../api/mount.ts'
import type { Routes } from '../api/routes/index.ts'
import type { Clock } from '../lib/async/clock.ts'
import type { Database } from '../store/database.ts'
import type { Dispatch, RetentionPolicy } from '../store/dispatch/port.ts'
import type { FileStore } from '../store/files.ts'
import type { Caller } from './listen/access.ts'
import type { CheckTask } from './routes/assert-tasks.ts'
import type { NamedBells } from './notify/notifier.ts'
import type { CallbackOptions } from './callbacks/callback-pump.ts'
import type { EventFeed } from './notify/event-feed.ts'
import type { LeaseDesk } from './notify/lease-queue.ts'
import type { ResultChecker } from './results/check-result.ts'
import type { Waits } from './notify/long-polls.ts'

/** What answers are made from. */
export interface ServerDeps {
  database: Database
  dispatch: Dispatch
  files: FileStore
  feed: EventFeed
  /** Rings the id of a task when a session of it may have ended, or anything else of it have changed. */
  bell: NamedBells
  /** The same only when the task itself may be over. Whoever waits for that need not look at every session that ends. */
  overBell: NamedBells
  desk: LeaseDesk
  waits: Waits
  checker: ResultChecker
  callbacks: CallbackOptions
  /** Absent: tasks are checked by nodes only. */
  checkTask?: CheckTask
  /** A trainer may be to be called now. */
  wakeCallbacks: () => void
  /** Of all tokens there are. */
  tokenNames: ReadonlySet<string>
  /** Of Polar. */
  version: string
  leaseMs: number
  /** Absent: tasks are kept until somebody deletes them. */
  retention?: RetentionPolicy
  clock: Clock
  monotonic: () => number
  logger: Logger
}

/** The handlers of some routes. */
export type Some<Name extends keyof Routes> = Pick<Handlers<Routes, Caller>, Name>
