import { JsonStream } from '../../api/json-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { createTaskReader, deletedMeanwhile, readEndings, readResult } from '../results/results.ts'
import { noTask } from './request-errors.ts'

/** Streams and pages of the results of a task. */
export function taskResultHandlers(deps: ServerDeps): Some<'streamTaskResults' | 'listTaskResults'> {
  const assertTask = async (taskId: string): Promise<void> => {
    if ((await deps.dispatch.tasks.findProgress(taskId)) === undefined) throw noTask(taskId)
  }
  return {
    async streamTaskResults({ params, query, signal }) {
      await assertTask(params.task_id)
      deps.longPolls.assertCapacity()
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
      return { task_id: params.task_id, results, next_cursor: isMore ? String(place) : undefined }
    },
  }
}

/** Poll interval: a notification may be lost. */
const RECHECK_MS = 5000

async function* streamResults(
  taskId: string,
  { skip, follow }: { skip: number; follow: boolean },
  signal: AbortSignal,
  deps: ServerDeps,
): AsyncGenerator<JsonStream> {
  using end = deps.longPolls.begin(signal)
  using changes = deps.taskChanges.subscribe(taskId)
  const readTask = createTaskReader(deps, taskId)
  for (let place = skip; ;) {
    // Read before the results: if the task has ended by then, the results read next are all.
    const task = await deps.dispatch.tasks.findProgress(taskId)
    for await (const ending of readEndings(deps, taskId, { after: place })) {
      place = ending.place
      yield new JsonStream(readResult({ ...ending, taskId }, deps, readTask))
    }
    if (task === undefined || place < task.endings) throw deletedMeanwhile(taskId)
    if (!follow || task.status !== 'running') return
    if (end.signal.aborted) throw closed()
    await changes.next(RECHECK_MS, end.signal)
  }
}

/** A stream that ends without an error would mean that all results were sent. */
function closed(): RolloutError {
  return new RolloutError(
    'server.unreachable',
    'The server is closing; repeat the request with skip set to the number of results received.',
  )
}
