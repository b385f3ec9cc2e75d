import type { Client } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionSummary, TaskSummary } from '../views/task-view.ts'

/** Length limit of the API's search text. */
const MAX_SEARCH = 256

/** Returns the summary of a task. Throws `request.not-found`. */
export async function findTask(client: Client, taskId: string, signal?: AbortSignal): Promise<TaskSummary> {
  for await (const task of listTasks(client, { search: taskId.slice(0, MAX_SEARCH) }, Infinity, signal)) {
    if (task.task_id === taskId) return task
  }
  throw new RolloutError('request.not-found', `Task ${taskId} does not exist.`)
}

type ListQuery = NonNullable<NonNullable<Parameters<Client['listTasks']>[0]>['query']>

/** Lists tasks, newest first, page by page. */
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
      query: { ...query, limit: Math.min(left, 1000), cursor },
      signal,
    })
    yield* page.tasks
    left -= page.tasks.length
    cursor = page.next_cursor
  } while (cursor !== undefined && left > 0)
}

/** Lists all sessions of a task; `unrunnable` is the reason why no node can run the queued ones, else null. */
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
