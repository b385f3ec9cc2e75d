import { TaskResult } from '../../../src/model/task.ts'
import { type HistoryLog, monotonic } from './history.ts'
import { type HttpService, serve } from './http.ts'
import type { Chance } from './random.ts'
import { toResultFact } from './witness.ts'

/** Callback endpoint of a trainer. Some callbacks fail until `calm` fires. */
export function openCallbacks(log: HistoryLog, chance: Chance, calm: AbortSignal): Promise<HttpService> {
  return serve('127.0.0.1', async ({ path, body }, outgoing) => {
    const luck = calm.aborted ? 1 : chance.next()
    const isAnswered = luck >= 0.3
    const { task_id: taskId, results, ...task } = TaskResult.parse(JSON.parse(body.toString()))
    const status = task.polar_status ?? task.status
    const view = { status, results: results.map((result) => toResultFact(result)) }
    // A callback to the URL of another task is recorded under its path.
    log.add({ kind: 'callback', taskId: path === `/${taskId}` ? taskId : path, at: monotonic(), isAnswered, view })
    if (luck < 0.15) outgoing.destroy()
    else outgoing.writeHead(isAnswered ? 200 : 500).end()
  })
}
