import type { Client } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionSummary, TaskSummary } from '../views/task-view.ts'

/** Longest the search of the API takes. */
const MOST_SEARCH = 256

/** The summary of one task. Throws `request.not-found`. */
export async function findTask(client: Client, taskId: string, signal?: AbortSignal): Promise<TaskSummary> {
  for await (const task of listTasks(client, { search: taskId.slice(0, MOST_SEARCH) }, Infinity, signal)) {
    if (task.task_id === taskId) return task
  }
  throw new RolloutError('request.not-found', `There is no task ${taskId}.`)
}

type ListQuery = NonNullable<NonNullable<Parameters<Client['listTasks']>[0]>['query']>

/** Newest first, page by page. */
export async function* listTasks(
  client: Client,
  query: ListQuery,
  most: number,
  signal?: AbortSignal,
): AsyncGenerator<TaskSummary, void, undefined> {
  let left = most
  let cursor: string | undefined
  do {
    const page = await client.listTasks({
      query: { ...query, limit: Math.min(left, 1000), ...(cursor === undefined ? {} : { cursor }) },
      ...(signal === undefined ? {} : { signal }),
    })
    yield* page.tasks
    left -= page.tasks.length
    cursor = page.next_cursor
  } while (cursor !== undefined && left > 0)
}

/** All sessions of a task, and why queued ones do not start; null when some node can run them. */
export async function listSessions(
  client: Client,
  taskId: string,
): Promise<{ sessions: SessionSummary[]; unrunnable: string | null }> {
  const sessions: SessionSummary[] = []
  let unrunnable: string | null = null
  let cursor: string | undefined
  do {
    const page = await client.listTaskSessions({
      params: { task_id: taskId },
      query: cursor === undefined ? {} : { cursor },
    })
    sessions.push(...page.sessions)
    unrunnable = page.unrunnable
    cursor = page.next_cursor
  } while (cursor !== undefined)
  return { sessions, unrunnable }
}
