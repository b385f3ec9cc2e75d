import { resolve } from 'node:path'
import { SubmitRequest } from '../../api/routes/submit-request.ts'
import type { FoundServer } from '../input/find-server.ts'
import type { TaskRequest } from '../../model/task.ts'
import { usageError } from '../command.ts'
import { checkTask } from '../../node/check-task.ts'
import { loadTaskFiles } from '../input/load-tasks.ts'
import { pathsOf } from './task-paths.ts'

export interface SubmitChanges {
  samples: number | undefined
  priority: number | undefined
  id: string | undefined
}

export interface Submitted {
  task_id: string
  outcome: 'created' | 'same' | 'conflict' | 'stale' | 'cancelled' | 'deleted' | 'no-node'
  warnings?: string[] | undefined
}

export interface SubmitOptions {
  /** Run tasks again that have ended. Otherwise a file submitted twice is the same task. */
  isAgain: boolean
  /** Also queue tasks that no registered node can run. */
  isQueued: boolean
}

/** Limits of one API request. */
const BATCH_TASKS = 1000
const BATCH_BYTES = 32 * 1024 * 1024

/**
 * Loads tasks from files and applies the values of flags. Throws `config.invalid` with all problems. Nodes check modules and
 * secrets; files are checked here if the server is on this machine.
 */
export async function readTasks(
  files: readonly string[],
  changes: SubmitChanges,
  { isLocal }: Pick<FoundServer, 'isLocal'>,
): Promise<SubmitRequest[]> {
  const tasks = await loadTaskFiles(
    files.map((file) => resolve(file)),
    SubmitRequest,
    (task) => checkTask(task, { hasFiles: isLocal }),
  )
  const { samples, priority, id } = changes
  if (id !== undefined && tasks.length > 1)
    throw usageError('task', `--id needs exactly one task, but the files have ${tasks.length}`)
  const changed = tasks.map((task) => ({
    ...task,
    ...(id === undefined ? {} : { task_id: id }),
    ...(samples === undefined ? {} : { num_samples: samples }),
    ...(priority === undefined ? {} : { dispatch_priority: priority }),
  }))
  const ids = changed.map(({ task_id }) => task_id)
  const duplicate = ids.find((name, index) => ids.indexOf(name) < index)
  if (duplicate !== undefined) throw usageError('task', `two tasks have the task_id ${duplicate}`)
  return changed
}

/** Returns the outcomes in the order of the tasks. */
export async function submitTasks(
  { client }: FoundServer,
  tasks: readonly SubmitRequest[],
  { isAgain, isQueued }: SubmitOptions,
): Promise<Submitted[]> {
  const outcomes: Submitted[] = []
  for (const batch of batchesOf(tasks)) {
    const answer = await client.submitBatch({
      query: { unrunnable: isQueued ? 'queue' : 'refuse' },
      body: { tasks: batch },
      // With a constant key, a command that is repeated after an interruption finds its first tasks.
      idempotencyKey: isAgain ? undefined : SAME_FILES,
    })
    outcomes.push(...answer.outcomes)
  }
  return outcomes
}

const SAME_FILES = 'polar task submit'

function* batchesOf(tasks: readonly SubmitRequest[]): Generator<SubmitRequest[], void, undefined> {
  let batch: SubmitRequest[] = []
  let bytes = 0
  for (const task of tasks) {
    const size = Buffer.byteLength(JSON.stringify(task))
    if (batch.length >= BATCH_TASKS || (batch.length > 0 && bytes + size > BATCH_BYTES)) {
      yield batch
      batch = []
      bytes = 0
    }
    batch.push(task)
    bytes += size
  }
  if (batch.length > 0) yield batch
}

/** Returns a warning about paths that nodes of another machine resolve on their own disks; undefined if there are none. */
export function warnOfPaths({ isLocal, url }: FoundServer, tasks: readonly TaskRequest[]): string | undefined {
  if (isLocal) return undefined
  const paths = [...new Set(tasks.flatMap(pathsOf))]
  if (paths.length === 0) return undefined
  const some = paths.slice(0, 5).join(', ')
  const more = paths.length > 5 ? ` and ${paths.length - 5} more` : ''
  return [
    `Warning: files are not sent to ${url}. Its nodes read these paths from their own disks: ${some}${more}.`,
    'Put them on storage that all nodes share, at the same path, and add the path to node.allow.paths.',
  ].join('\n')
}
