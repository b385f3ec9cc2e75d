import type { Logger } from 'pino'
import type { Handlers } from '../api/mount.ts'
import type { Routes } from '../api/routes.ts'
import type { Clock } from '../lib/clock.ts'
import type { Database } from '../store/database.ts'
import type { Dispatch, RetentionPolicy } from '../store/dispatch.ts'
import type { FileStore } from '../store/files.ts'
import type { Caller } from './access.ts'
import type { CheckTask } from './assert-tasks.ts'
import type { NamedBells } from './named-bells.ts'
import type { CallbackOptions } from './callbacks.ts'
import type { EventFeed } from './event-feed.ts'
import type { LeaseDesk } from './lease-desk.ts'
import type { ResultChecker } from './check-result.ts'
import type { Waits } from './waits.ts'

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
