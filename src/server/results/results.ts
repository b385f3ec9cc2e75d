import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { JsonStream, StoredJson } from '../../api/json-stream.ts'
import { readAll } from '../../api/limit-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionResult } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { ResultReference } from '../../store/dispatch/port.ts'
import type { TaskWord } from '../../store/database/tables.ts'
import { type Ending, findTaskRequest, listCurrentEndings, listEndings } from '../../store/dispatch/queries/tasks.ts'
import type { ServerDeps } from '../deps.ts'
import { type EndedSession, makeResult, makeUnreadable } from './made-result.ts'
import { findProgress, type TaskProgress } from '../routes/task-progress.ts'

type ResultDeps = Pick<ServerDeps, 'database' | 'files' | 'logger'>
type EndedResult = EndedSession & { result?: ResultReference }

const PAGE = 200

/** How the sessions of a task ended, in order, read page by page. */
export async function* readEndings(
  { database }: Pick<ServerDeps, 'database'>,
  taskId: string,
  { after = 0 }: { after?: number } = {},
): AsyncGenerator<Ending> {
  for (let place = after; ;) {
    const page = await listEndings(database.db, taskId, { after: place, limit: PAGE })
    for (const ending of page) {
      place = ending.place
      yield ending
    }
    if (page.length < PAGE) return
  }
}

/** The last ending of each session of a task, in order of sample, read page by page. */
async function* readCurrentEndings(
  { database }: Pick<ServerDeps, 'database'>,
  taskId: string,
  upTo: number,
): AsyncGenerator<Ending> {
  for (let afterSample = -1; ;) {
    const page = await listCurrentEndings(database.db, taskId, { afterSample, upTo, limit: PAGE })
    for (const ending of page) {
      afterSample = ending.sample
      yield ending
    }
    if (page.length < PAGE) return
  }
}

/** Reads the task of made results at most once. */
export type TaskReader = () => Promise<TaskRequest | undefined>

export function createTaskReader({ database }: Pick<ServerDeps, 'database'>, taskId: string): TaskReader {
  let found: Promise<TaskRequest | undefined> | undefined
  return () => (found ??= findTaskRequest(database.db, taskId))
}

/** The JSON of one result: as the node wrote it, or as we have to make it. */
export async function openResult(
  ending: EndedResult,
  deps: ResultDeps,
  readTask: TaskReader = createTaskReader(deps, ending.taskId),
): Promise<JsonStream> {
  const { database, files, logger } = deps
  if (ending.result === undefined) return toStream(makeResult(ending, await readTask()))
  try {
    const { stream, bytes } = await files.open(ending.result.path)
    return new StoredJson(stream, bytes)
  } catch (error) {
    if ((await findProgress(database.db, ending.taskId)) === undefined) throw deletedMeanwhile(ending.taskId)
    logger.error({ err: error, sessionId: ending.sessionId }, 'the result of a session cannot be read')
    return toStream(makeUnreadable(ending, await readTask(), error))
  }
}

/** The same as text, opened when it is first asked for. */
export async function* readResult(
  ending: EndedResult,
  deps: ResultDeps,
  readTask?: TaskReader,
): AsyncGenerator<Uint8Array> {
  const json = await openResult(ending, deps, readTask)
  if (json instanceof StoredJson && json.bytes <= SHORT_BYTES) yield* readShort(await readAll(json.compressed))
  else yield* json.chunks
}

/** Most are short, and a stream costs more than they do. */
const SHORT_BYTES = 64 * 1024
const SHORT_TEXT_BYTES = 4 * 1024 * 1024
const decompress = promisify(zstdDecompress)

async function* readShort(compressed: Uint8Array<ArrayBuffer>): AsyncGenerator<Uint8Array> {
  const text = await decompress(compressed, { maxOutputLength: SHORT_TEXT_BYTES }).catch(() => undefined)
  // Not so short after all, or damaged.
  if (text === undefined) yield* new StoredJson(new Blob([compressed]).stream(), compressed.length).chunks
  else yield text
}

function toStream(result: SessionResult): JsonStream {
  return new JsonStream(once(Buffer.from(JSON.stringify(result))))
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes
}

/**
 * The status as NVIDIA Polar's trainer reads it. It ends at `failed`, so a task that infrastructure spoilt is `completed`
 * there, with only ERROR sessions.
 */
export function toNvidiaTaskStatus(status: TaskWord): Exclude<TaskWord, 'failed'> {
  return status === 'failed' ? 'completed' : status
}

/**
 * A task as NVIDIA Polar shows it, with the results of its sessions in order of sample, spliced in as they are. One result
 * is read at a time, and of that only a piece, so a task of any size takes no memory. `polar_status` is our own status.
 */
export async function* renderTask(
  task: TaskProgress,
  {
    results,
    counts,
  }: { results: 'inline' | 'reference'; /** Absent from what a trainer is called back with. */ counts: boolean },
  deps: ResultDeps,
): AsyncGenerator<Uint8Array> {
  const paths: string[] = []
  const status = toNvidiaTaskStatus(task.status)
  const head = `{"task_id":${JSON.stringify(task.taskId)},"status":"${status}","polar_status":"${task.status}"`
  yield Buffer.from(`${head},"results":[`)
  const readTask = createTaskReader(deps, task.taskId)
  let isFirst = true
  let current = 0
  // Those that end from now on are not counted above, and so not shown.
  for await (const ending of readCurrentEndings(deps, task.taskId, task.endings)) {
    current += 1
    if (ending.result !== undefined) paths.push(ending.result.path)
    if (results === 'reference') continue
    if (!isFirst) yield COMMA
    isFirst = false
    yield* readResult({ ...ending, taskId: task.taskId }, deps, readTask)
  }
  if (current < task.ended) await assertNotGone(task, deps)
  const totals = counts ? `,"total_sessions":${task.need},"completed_sessions":${task.ended}` : ''
  yield Buffer.from(`],"result_paths":${JSON.stringify(paths)}${totals}}`)
}

/** Fewer sessions are over than before: the task was deleted, or some of its sessions were queued again. */
async function assertNotGone({ taskId, status }: TaskProgress, { database }: ResultDeps): Promise<void> {
  if ((await findProgress(database.db, taskId)) === undefined) throw deletedMeanwhile(taskId)
  if (status !== 'running') throw reopenedMeanwhile(taskId)
}

const COMMA = Buffer.from(',')

/** An end in good order would say that this was all. */
export function deletedMeanwhile(taskId: string): RolloutError {
  return new RolloutError('request.not-found', `Task ${JSON.stringify(taskId)} was deleted while it was read.`)
}

/** It was over, and some of its sessions are made again: what was read of it is of no ending that there ever was. */
function reopenedMeanwhile(taskId: string): RolloutError {
  return new RolloutError('request.conflict', `Task ${JSON.stringify(taskId)} began again while it was read.`)
}

/**
 * What a trainer is called back with; undefined when there is no such task, or it has begun again, since there will be
 * another callback at its end. The same bytes each time.
 */
export async function openTaskResult(taskId: string, deps: ResultDeps): Promise<AsyncIterable<Uint8Array> | undefined> {
  const task = await findProgress(deps.database.db, taskId)
  if (task === undefined || task.status === 'running') return undefined
  return renderTask(task, { results: 'inline', counts: false }, deps)
}
