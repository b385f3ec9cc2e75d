import { JsonStream } from '../../api/json-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import { noticesOf } from '../../model/task-notices.ts'
import type {
  Dispatch,
  EnqueueOutcome,
  NodeFit,
  Submission,
  TaskProgress,
  TaskSummary,
} from '../../store/dispatch/port.ts'
import { assertCallbackAllowed } from '../callbacks/callback-sender.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { clearDeletedTasks } from '../maintenance/deleted-tasks.ts'
import { renderTask, toNvidiaTaskStatus } from '../results/results.ts'
import { assertTasks } from './assert-tasks.ts'
import { noTask, overQuota, refusedRetry } from './request-errors.ts'
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
  const find = async (taskId: string): Promise<TaskSummary> => {
    const task = await dispatch.tasks.find(taskId)
    if (task === undefined) throw noTask(taskId)
    return task
  }
  const submit = async (tasks: readonly Submission[], { name, key }: { name: string; key: string | undefined }) => {
    for (const { task } of tasks) {
      if (task.callback_url != null) assertCallbackAllowed(task.callback_url, deps.callbacks)
    }
    return dispatch.enqueue(tasks, { owner: name, isRerun: true, key })
  }
  return {
    async submitTask({ body, query, caller, warnings, idempotencyKey: key }) {
      await assertTasks([{ task: body, lead: [] }], deps.checkTask)
      const submission = toSubmission(body)
      const fit = await dispatch.nodes.findFit(submission.requires ?? [])
      if (fit.isUnrunnable && query.unrunnable === 'refuse') throw noNode(body.task_id, fit.why!)
      const [outcome] = await submit([submission], { name: caller.name, key })
      assertCreated(outcome!)
      const progress = outcome!.kind === 'same' ? await dispatch.tasks.findProgress(body.task_id) : undefined
      const allWarnings = [...warnings, ...warningsOf(outcome!, fit), ...noticesOf(body)]
      return {
        task_id: body.task_id,
        status: toNvidiaTaskStatus(progress?.status ?? 'running'),
        warnings: nonEmpty(allWarnings),
      }
    },
    async submitBatch({ body, query, caller, idempotencyKey: key }) {
      await assertTasks(
        body.tasks.map((task, index) => ({ task, lead: ['tasks', index] })),
        deps.checkTask,
      )
      const submissions = body.tasks.map(toSubmission)
      const fits = await findFits(dispatch, submissions)
      const isRefused = (at: number): boolean => fits[at]!.isUnrunnable && query.unrunnable === 'refuse'
      const outcomes = await submit(
        submissions.filter((_, at) => !isRefused(at)),
        { name: caller.name, key },
      )
      return {
        outcomes: body.tasks.map((task, at) => {
          const { task_id } = task
          if (isRefused(at)) return { task_id, outcome: 'no-node' as const, warnings: [fits[at]!.why!] }
          const outcome = outcomes.shift()!
          if (outcome.kind === 'over-quota') throw overQuota()
          const warnings = nonEmpty([...warningsOf(outcome, fits[at]!), ...noticesOf(task)])
          return { task_id, outcome: outcome.kind, warnings }
        }),
      }
    },
    async getTask({ params, query, signal }) {
      const task = await waitForChange(params.task_id, query, signal, deps)
      return new JsonStream(renderTask(task, { results: query.results, counts: true }, deps))
    },
    async cancelTask({ params, query }) {
      const status = await dispatch.cancelTask(params.task_id, { registerIfMissing: query.register_if_missing })
      const task = await dispatch.tasks.findProgress(params.task_id)
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
        const message = `Task ${JSON.stringify(taskId)} is running; cancel it first, or wait until it ends.`
        throw new RolloutError('request.conflict', message)
      }
      await clearDeletedTasks(deps, { taskId, signal: AbortSignal.timeout(CLEARING_MS) })
      return { task_id: taskId, deleted_sessions: outcome.sessions, deleted_bytes: outcome.bytes }
    },
    async updateTask({ params, body }) {
      const { dispatch_priority: priority, early_stop_min_usable_sessions: earlyStop } = body
      const outcome = await dispatch.updateTask(params.task_id, { priority, earlyStop })
      if (outcome === 'unknown-task') throw noTask(params.task_id)
      if (outcome === 'over') {
        const message = `Task ${JSON.stringify(params.task_id)} has ended and can no longer be changed.`
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
      const { tasks, next } = await dispatch.tasks.list({
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
      if ((await dispatch.tasks.findProgress(params.task_id)) === undefined) throw noTask(params.task_id)
      const { sessions, next } = await dispatch.sessions.listOfTask(params.task_id, { limit, status, cursor })
      return {
        task_id: params.task_id,
        sessions: sessions.map(toSessionSummary),
        unrunnable: (await dispatch.tasks.findUnrunnable(params.task_id)) ?? null,
        next_cursor: next,
      }
    },
  }
}

/** Most tasks of a batch require the same labels. */
async function findFits({ nodes }: Dispatch, submissions: readonly Submission[]): Promise<NodeFit[]> {
  const known = new Map<string, Promise<NodeFit>>()
  const found = submissions.map(({ requires = [] }) => {
    const key = JSON.stringify(requires)
    const fit = known.get(key) ?? nodes.findFit(requires)
    known.set(key, fit)
    return fit
  })
  return Promise.all(found)
}

function nonEmpty(texts: readonly string[]): string[] | undefined {
  return texts.length > 0 ? [...texts] : undefined
}

function warningsOf({ taskId, kind, archivedAs }: EnqueueOutcome, { why }: NodeFit): string[] {
  const archived =
    archivedAs !== undefined &&
    `Task ${JSON.stringify(taskId)} had ended, so this is a new run. The older run is now task ${JSON.stringify(archivedAs)}.`
  return [archived, kind === 'created' && why].filter((text) => typeof text === 'string')
}

function noNode(taskId: string, why: string): RolloutError {
  const message = `Task ${JSON.stringify(taskId)} is refused: ${why} Start such a node, or submit with ?unrunnable=queue.`
  return new RolloutError('request.no-node', message)
}

function assertCreated({ taskId, kind }: EnqueueOutcome): void {
  const name = JSON.stringify(taskId)
  switch (kind) {
    case 'created':
    case 'same':
      return
    case 'over-quota':
      throw overQuota()
    case 'conflict':
      throw new RolloutError(
        'request.conflict',
        `Task ${name} already exists with different contents. Use another task_id.`,
      )
    case 'cancelled':
      throw new RolloutError('request.conflict', `Task ${name} was cancelled before it was submitted.`)
    case 'deleted': {
      const message = `Task ${name} was created by the same idempotency key and has been deleted; submit it with a new key, or use another task_id.`
      throw new RolloutError('request.conflict', message)
    }
    case 'stale':
      throw new RolloutError('request.stale', `The policy version of task ${name} is too old.`)
  }
}

/** How long a delete request waits for the rows and files to be removed; a maintenance job removes the rest. */
const CLEARING_MS = 10_000

/** Poll interval: a notification may be lost. */
const RECHECK_MS = 5000

/** Returns the task when it has ended or more than `known_completed` sessions have, or after `wait` seconds. */
async function waitForChange(
  taskId: string,
  { wait, known_completed: known }: { wait: number; known_completed?: number | undefined },
  signal: AbortSignal,
  { dispatch, taskChanges, taskEnds, longPolls, monotonic }: ServerDeps,
): Promise<TaskProgress> {
  const read = async (): Promise<TaskProgress> => {
    const task = await dispatch.tasks.findProgress(taskId)
    if (task === undefined) throw noTask(taskId)
    return task
  }
  const isChanged = ({ status, ended }: TaskProgress): boolean =>
    status !== 'running' || (known !== undefined && ended > known)
  const task = await read()
  if (wait === 0 || isChanged(task)) return task
  return longPolls.run(signal, async (end) => {
    const until = monotonic() + wait * 1000
    using changes = (known === undefined ? taskEnds : taskChanges).subscribe(taskId)
    for (;;) {
      const found = await read()
      const left = until - monotonic()
      if (isChanged(found) || left <= 0 || end.aborted) return found
      await changes.next(Math.min(left, RECHECK_MS), end)
    }
  })
}
