import { JsonStream } from '../../api/json-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { noTask } from './not-found.ts'
import { createTaskReader, deletedMeanwhile, readEndings, readResult } from '../results/results.ts'
import { findProgress } from './task-progress.ts'

/** The results of a task, other than all at once. */
export function taskResultHandlers(deps: ServerDeps): Some<'streamTaskResults' | 'listTaskResults'> {
  const assertTask = async (taskId: string): Promise<void> => {
    if ((await findProgress(deps.database.db, taskId)) === undefined) throw noTask(taskId)
  }
  return {
    async streamTaskResults({ params, query, signal }) {
      await assertTask(params.task_id)
      deps.waits.assertRoom()
      return streamResults(params.task_id, query, signal, deps)
    },
    async listTaskResults({ params, query }) {
      await assertTask(params.task_id)
      const after = query.cursor === undefined ? 0 : Number.parseInt(query.cursor, 10) || 0
      const results = []
      let place = after
      let isMore = false
      for await (const ending of readEndings(deps, params.task_id, { after })) {
        isMore = results.length >= query.limit
        if (isMore) break
        place = ending.place
        if (!ending.isCurrent || ending.result === undefined) continue
        results.push({ session_id: ending.sessionId, attempt: ending.attempt, ...ending.result })
      }
      return { task_id: params.task_id, results, ...(isMore && { next_cursor: String(place) }) }
    },
  }
}

/** When nobody rang: a notification may be lost. */
const RECHECK_MS = 5000

async function* streamResults(
  taskId: string,
  { skip, follow }: { skip: number; follow: boolean },
  signal: AbortSignal,
  deps: ServerDeps,
): AsyncGenerator<JsonStream> {
  using end = deps.waits.enter(signal)
  using ear = deps.bell.listen(taskId)
  const readTask = createTaskReader(deps, taskId)
  for (let place = skip; ;) {
    // Looked at before the results are: when it is over then, there is nothing after what is read now.
    const task = await findProgress(deps.database.db, taskId)
    for await (const ending of readEndings(deps, taskId, { after: place })) {
      place = ending.place
      yield new JsonStream(readResult({ ...ending, taskId }, deps, readTask))
    }
    if (task === undefined || place < task.endings) throw deletedMeanwhile(taskId)
    if (!follow || task.status !== 'running') return
    if (end.signal.aborted) throw closed()
    await ear.next(RECHECK_MS, end.signal)
  }
}

/** An end in good order would say that this was all. */
function closed(): RolloutError {
  return new RolloutError('server.unreachable', 'The server is closing; ask again, for what comes after the last line.')
}
