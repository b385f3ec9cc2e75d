import type { Sql } from '../../database.ts'
import { findAttemptState } from './attempt-state.ts'
import { findCallback, listCallbacks } from './callbacks.ts'
import { newestCursor, readEvents } from './events.ts'
import { findKnownFiles } from './known-files.ts'
import { findFit, findUnrunnable } from './node-fit.ts'
import { countNodes, findNode, listNodes } from './nodes.ts'
import { getPolicy, listPolicyNodes } from './policy.ts'
import { listQuotas } from './quotas.ts'
import { countOpen, findArtifact, findSession, listArtifacts, listSessions, listTaskSessions } from './sessions.ts'
import { findProgress } from './task-progress.ts'
import { findTask, findTaskRequest, listCurrentEndings, listEndings, listRunning, listTasks } from './tasks.ts'

export type Queries = ReturnType<typeof createQueries>

/** All queries by subject. */
export function createQueries(db: Sql) {
  return {
    tasks: bind(db, {
      find: findTask,
      findRequest: findTaskRequest,
      findProgress,
      findUnrunnable,
      list: listTasks,
      listRunning,
      listEndings,
      listCurrentEndings,
    }),
    sessions: bind(db, {
      find: findSession,
      findAttemptState,
      findArtifact,
      list: listSessions,
      listOfTask: listTaskSessions,
      listArtifacts,
      countOpen,
    }),
    nodes: bind(db, { find: findNode, findFit, list: listNodes, count: countNodes }),
    events: bind(db, { read: readEvents, newestCursor }),
    callbacks: bind(db, { find: findCallback, list: listCallbacks }),
    quotas: bind(db, { list: listQuotas }),
    policy: bind(db, { get: getPolicy, listNodes: listPolicyNodes }),
    files: bind(db, { findKnown: findKnownFiles }),
  }
}

type Query = (db: Sql, ...rest: never[]) => unknown

type Bound<T> = {
  [Name in keyof T]: T[Name] extends (db: Sql, ...rest: infer Rest) => infer Result ? (...rest: Rest) => Result : never
}

/** Binds the first parameter of each query. */
function bind<T extends Record<string, Query>>(db: Sql, queries: T): Bound<T> {
  const bound = Object.entries(queries).map(([name, query]) => [name, query.bind(undefined, db)])
  return Object.fromEntries(bound) as Bound<T>
}
