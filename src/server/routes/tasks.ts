import { JsonStream } from '../../api/json-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import { noticesOf } from '../../model/task-notices.ts'
import type { Sql } from '../../store/database.ts'
import type { EnqueueOutcome, Submission } from '../../store/dispatch/port.ts'
import { listTaskSessions } from '../../store/dispatch/queries/sessions.ts'
import { findTask, listTasks, type TaskSummary } from '../../store/dispatch/queries/tasks.ts'
import { assertTasks } from './assert-tasks.ts'
import { assertCallbackAllowed } from '../callbacks/callback-pump.ts'
import { clearDeletedTasks } from '../maintenance/deleted-tasks.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { noTask } from './not-found.ts'
import { overQuota, refusedRetry } from '../results/refused-retry.ts'
import { renderTask, toNvidiaTaskStatus } from '../results/results.ts'
import { findFit, findUnrunnable, type NodeFit } from './node-fit.ts'
import { findProgress, type TaskProgress } from './task-progress.ts'
import { toSubmission } from './to-submission.ts'
import { toSessionSummary, toTaskSummary } from './views.ts'

type TaskRoutes =
  | 'submitTask'
  | 'submitBatch'
  | 'getTask'
  | 'cancelTask'
  | 'deleteTask'
  | 'updateTask'
  | 'retryTask'
  | 'listTasks'
  | 'listTaskSessions'

export function taskHandlers(deps: ServerDeps): Some<TaskRoutes> {
  const { dispatch } = deps
  const { db } = deps.database
  const find = async (taskId: string): Promise<TaskSummary> => {
    const task = await findTask(db, taskId)
    if (task === undefined) throw noTask(taskId)
    return task
  }
  const submit = async (tasks: readonly Submission[], { name, key }: { name: string; key: string | undefined }) => {
    for (const { task } of tasks) {
      if (task.callback_url != null) assertCallbackAllowed(task.callback_url, deps.callbacks)
    }
    return dispatch.enqueue(tasks, { owner: name, isRerun: true, ...(key !== undefined && { key }) })
  }
  return {
    async submitTask({ body, query, caller, warnings, idempotencyKey: key }) {
      await assertTasks([{ task: body, lead: [] }], deps.checkTask)
      const submission = toSubmission(body)
      const fit = await findFit(db, submission.requires ?? [])
      if (fit.isUnrunnable && query.unrunnable === 'refuse') throw noNode(body.task_id, fit.why!)
      const [outcome] = await submit([submission], { name: caller.name, key })
      assertTaken(outcome!)
      const progress = outcome!.kind === 'same' ? await findProgress(db, body.task_id) : undefined
      const told = [...warnings, ...warningsOf(outcome!, fit), ...noticesOf(body)]
      return {
        task_id: body.task_id,
        status: toNvidiaTaskStatus(progress?.status ?? 'running'),
        ...(told.length > 0 && { warnings: told }),
      }
    },
    async submitBatch({ body, query, caller, idempotencyKey: key }) {
      await assertTasks(
        body.tasks.map((task, index) => ({ task, lead: ['tasks', index] })),
        deps.checkTask,
      )
      const submissions = body.tasks.map(toSubmission)
      const fits = await findFits(db, submissions)
      const isLeftOut = (at: number): boolean => fits[at]!.isUnrunnable && query.unrunnable === 'refuse'
      const taken = await submit(
        submissions.filter((_, at) => !isLeftOut(at)),
        { name: caller.name, key },
      )
      return {
        outcomes: body.tasks.map((task, at) => {
          const { task_id } = task
          if (isLeftOut(at)) return { task_id, outcome: 'no-node' as const, warnings: [fits[at]!.why!] }
          const outcome = taken.shift()!
          if (outcome.kind === 'over-quota') throw overQuota()
          const told = [...warningsOf(outcome, fits[at]!), ...noticesOf(task)]
          return { task_id, outcome: outcome.kind, ...(told.length > 0 && { warnings: told }) }
        }),
      }
    },
    async getTask({ params, query, signal }) {
      const task = await waitForNews(params.task_id, query, signal, deps)
      return new JsonStream(renderTask(task, { results: query.results, counts: true }, deps))
    },
    async cancelTask({ params, query }) {
      const status = await dispatch.cancelTask(params.task_id, { registerIfMissing: query.register_if_missing })
      const task = await findProgress(db, params.task_id)
      if (task !== undefined) return new JsonStream(renderTask(task, { results: 'inline', counts: true }, deps))
      if (status === undefined) throw noTask(params.task_id)
      return {
        task_id: params.task_id,
        status,
        polar_status: status,
        results: [],
        result_paths: [],
        total_sessions: 0,
        completed_sessions: 0,
      }
    },
    async deleteTask({ params: { task_id: taskId } }) {
      const outcome = await dispatch.deleteTask(taskId)
      if (outcome.kind === 'unknown-task') throw noTask(taskId)
      if (outcome.kind === 'running') {
        const message = `Task ${JSON.stringify(taskId)} is running; cancel it first, or wait until it is over.`
        throw new RolloutError('request.conflict', message)
      }
      await clearDeletedTasks(deps, { taskId, signal: AbortSignal.timeout(CLEARING_MS) })
      return { task_id: taskId, deleted_sessions: outcome.sessions, deleted_bytes: outcome.bytes }
    },
    async updateTask({ params, body }) {
      const { dispatch_priority: priority, early_stop_min_usable_sessions: earlyStop } = body
      const outcome = await dispatch.updateTask(params.task_id, {
        priority,
        earlyStop,
      })
      if (outcome === 'unknown-task') throw noTask(params.task_id)
      if (outcome === 'over') {
        const message = `Task ${JSON.stringify(params.task_id)} is over, so nothing of it can be changed.`
        throw new RolloutError('request.conflict', message)
      }
      return toTaskSummary(await find(params.task_id))
    },
    async retryTask({ params, body }) {
      const retry = await dispatch.retryTask(params.task_id, body.statuses)
      if (retry.kind !== 'retried') throw refusedRetry(retry.kind, params.task_id)
      return { task_id: params.task_id, status: retry.taskStatus, retried_sessions: retry.sessions }
    },
    async listTasks({ query: { status, harness, model, search, since, limit, cursor } }) {
      if (status === 'cancelling') return { tasks: [] }
      const { tasks, next } = await listTasks(db, {
        limit,
        status,
        harness,
        model,
        search,
        since: since === undefined ? undefined : since * 1000,
        cursor,
      })
      return { tasks: tasks.map(toTaskSummary), next_cursor: next }
    },
    async listTaskSessions({ params, query: { status, limit, cursor } }) {
      if ((await findProgress(db, params.task_id)) === undefined) throw noTask(params.task_id)
      const { sessions, next } = await listTaskSessions(db, params.task_id, {
        limit,
        status,
        cursor,
      })
      return {
        task_id: params.task_id,
        sessions: sessions.map(toSessionSummary),
        unrunnable: (await findUnrunnable(db, params.task_id)) ?? null,
        next_cursor: next,
      }
    },
  }
}

/** Most tasks of a batch ask for the same. */
async function findFits(db: Sql, submissions: readonly Submission[]): Promise<NodeFit[]> {
  const known = new Map<string, Promise<NodeFit>>()
  const found = submissions.map(({ requires = [] }) => {
    const key = JSON.stringify(requires)
    const fit = known.get(key) ?? findFit(db, requires)
    known.set(key, fit)
    return fit
  })
  return Promise.all(found)
}

function warningsOf({ taskId, kind, archivedAs }: EnqueueOutcome, { why }: NodeFit): string[] {
  const archived =
    archivedAs !== undefined &&
    `Task ${JSON.stringify(taskId)} was over; this is a new run. The older run is task ${JSON.stringify(archivedAs)} now.`
  return [archived, kind === 'created' && why].filter((text) => typeof text === 'string')
}

function noNode(taskId: string, why: string): RolloutError {
  const message = `Task ${JSON.stringify(taskId)} is refused: ${why} Start such a node, or submit with ?unrunnable=queue.`
  return new RolloutError('request.no-node', message)
}

function assertTaken({ taskId, kind }: EnqueueOutcome): void {
  const name = JSON.stringify(taskId)
  switch (kind) {
    case 'created':
    case 'same':
      return
    case 'over-quota':
      throw overQuota()
    case 'conflict':
      throw new RolloutError('request.conflict', `Task ${name} is running with another body; use another task_id.`)
    case 'cancelled':
      throw new RolloutError('request.conflict', `Task ${name} was cancelled before it was submitted.`)
    case 'deleted': {
      const message = `Task ${name} was created by this very submit and has been deleted; submit it anew, or use another task_id.`
      throw new RolloutError('request.conflict', message)
    }
    case 'stale':
      throw new RolloutError(
        'request.stale',
        `Task ${name} was made for a version of the policy that is too old by now.`,
      )
  }
}

/** For so long a caller waits for the files of what it deleted to be gone; the rest is a chore. */
const CLEARING_MS = 10_000

/** When nobody rang: a notification may be lost. */
const RECHECK_MS = 5000

/** The task as soon as it is what the caller waits for, or as it is when the time is over. */
async function waitForNews(
  taskId: string,
  { wait, known_completed: known }: { wait: number; known_completed?: number | undefined },
  signal: AbortSignal,
  { database, bell, overBell, waits, monotonic }: ServerDeps,
): Promise<TaskProgress> {
  const look = async (): Promise<TaskProgress> => {
    const task = await findProgress(database.db, taskId)
    if (task === undefined) throw noTask(taskId)
    return task
  }
  const isNews = ({ status, ended }: TaskProgress): boolean =>
    status !== 'running' || (known !== undefined && ended > known)
  const task = await look()
  if (wait === 0 || isNews(task)) return task
  return waits.during(signal, async (end) => {
    const until = monotonic() + wait * 1000
    using ear = (known === undefined ? overBell : bell).listen(taskId)
    for (;;) {
      const found = await look()
      const left = until - monotonic()
      if (isNews(found) || left <= 0 || end.aborted) return found
      await ear.next(Math.min(left, RECHECK_MS), end)
    }
  })
}
