import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { JsonStream, StoredJson } from '../../api/json-stream.ts'
import { readAll } from '../../api/limit-stream.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionResult } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Ending, ResultReference, TaskProgress, TaskState } from '../../store/dispatch/port.ts'
import type { ServerDeps } from '../deps.ts'
import { type EndedSession, makeResult, makeUnreadable } from './made-result.ts'

type ResultDeps = Pick<ServerDeps, 'dispatch' | 'files' | 'logger'>
type EndedResult = EndedSession & { result?: ResultReference }

const PAGE = 200

/** Reads the endings of a task in order, page by page. */
export async function* readEndings(
  { dispatch }: Pick<ServerDeps, 'dispatch'>,
  taskId: string,
  { after = 0 }: { after?: number } = {},
): AsyncGenerator<Ending> {
  for (let place = after; ;) {
    const page = await dispatch.tasks.listEndings(taskId, { after: place, limit: PAGE })
    for (const ending of page) {
      place = ending.place
      yield ending
    }
    if (page.length < PAGE) return
  }
}

/** Reads the last ending of each session of a task in order of sample, page by page. */
async function* readCurrentEndings(
  { dispatch }: Pick<ServerDeps, 'dispatch'>,
  taskId: string,
  upTo: number,
): AsyncGenerator<Ending> {
  for (let afterSample = -1; ;) {
    const page = await dispatch.tasks.listCurrentEndings(taskId, { afterSample, upTo, limit: PAGE })
    for (const ending of page) {
      afterSample = ending.sample
      yield ending
    }
    if (page.length < PAGE) return
  }
}

/** Reads the task at most once, for results that the server generates. */
export type TaskReader = () => Promise<TaskRequest | undefined>

export function createTaskReader({ dispatch }: Pick<ServerDeps, 'dispatch'>, taskId: string): TaskReader {
  let found: Promise<TaskRequest | undefined> | undefined
  return () => (found ??= dispatch.tasks.findRequest(taskId))
}

/** Opens the JSON of one result: the stored file, or a result that the server generates. */
export async function openResult(
  ending: EndedResult,
  deps: ResultDeps,
  readTask: TaskReader = createTaskReader(deps, ending.taskId),
): Promise<JsonStream> {
  const { dispatch, files, logger } = deps
  if (ending.result === undefined) return toStream(makeResult(ending, await readTask()))
  try {
    const { stream, bytes } = await files.open(ending.result.path)
    return new StoredJson(stream, bytes)
  } catch (error) {
    if ((await dispatch.tasks.findProgress(ending.taskId)) === undefined) throw deletedMeanwhile(ending.taskId)
    logger.error({ err: error, sessionId: ending.sessionId }, 'stored session result cannot be read')
    return toStream(makeUnreadable(ending, await readTask(), error))
  }
}

/** Reads one result as JSON text; opens the file on the first read. */
export async function* readResult(
  ending: EndedResult,
  deps: ResultDeps,
  readTask?: TaskReader,
): AsyncGenerator<Uint8Array> {
  const json = await openResult(ending, deps, readTask)
  if (json instanceof StoredJson && json.bytes <= SHORT_BYTES) yield* readShort(await readAll(json.compressed))
  else yield* json.chunks
}

/** Most results are small, and decompressing a small file at once is cheaper than a stream. */
const SHORT_BYTES = 64 * 1024
const SHORT_TEXT_BYTES = 4 * 1024 * 1024
const decompress = promisify(zstdDecompress)

async function* readShort(compressed: Uint8Array<ArrayBuffer>): AsyncGenerator<Uint8Array> {
  const text = await decompress(compressed, { maxOutputLength: SHORT_TEXT_BYTES }).catch(() => undefined)
  // The text is too long, or the file is damaged.
  if (text === undefined) yield* new StoredJson(new Blob([compressed]).stream(), compressed.length).chunks
  else yield text
}

function toStream(result: SessionResult): JsonStream {
  return new JsonStream(once(Buffer.from(JSON.stringify(result))))
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes
}

/** NVIDIA Polar's trainer stops at `failed`, so a failed task is reported as `completed`, with only ERROR sessions. */
export function toNvidiaTaskStatus(status: TaskState): Exclude<TaskState, 'failed'> {
  return status === 'failed' ? 'completed' : status
}

/**
 * Renders a task in NVIDIA Polar's format, with the stored results of its sessions in order of sample. Reads one result at a
 * time in chunks, so memory use does not depend on the size of the task. `polar_status` is our own status.
 */
export async function* renderTask(
  task: TaskProgress,
  { results, counts }: { results: 'inline' | 'reference'; /** False for callbacks. */ counts: boolean },
  deps: ResultDeps,
): AsyncGenerator<Uint8Array> {
  const paths: string[] = []
  const status = toNvidiaTaskStatus(task.status)
  const head = `{"task_id":${JSON.stringify(task.taskId)},"status":"${status}","polar_status":"${task.status}"`
  yield Buffer.from(`${head},"results":[`)
  const readTask = createTaskReader(deps, task.taskId)
  let isFirst = true
  let current = 0
  // Sessions that end later are not included in the counts, and so not rendered.
  for await (const ending of readCurrentEndings(deps, task.taskId, task.endings)) {
    current += 1
    if (ending.result !== undefined) paths.push(ending.result.path)
    if (results === 'reference') continue
    if (!isFirst) yield COMMA
    isFirst = false
    yield* readResult({ ...ending, taskId: task.taskId }, deps, readTask)
  }
  if (current < task.ended) await assertUnchanged(task, deps)
  const totals = counts ? `,"total_sessions":${task.need},"completed_sessions":${task.ended}` : ''
  yield Buffer.from(`],"result_paths":${JSON.stringify(paths)}${totals}}`)
}

/** Called when endings are missing: the task was deleted, or some of its sessions were retried. */
async function assertUnchanged({ taskId, status }: TaskProgress, { dispatch }: ResultDeps): Promise<void> {
  if ((await dispatch.tasks.findProgress(taskId)) === undefined) throw deletedMeanwhile(taskId)
  if (status !== 'running') throw reopenedMeanwhile(taskId)
}

const COMMA = Buffer.from(',')

/** A response that ends without an error would look complete. */
export function deletedMeanwhile(taskId: string): RolloutError {
  return new RolloutError('request.not-found', `Task ${JSON.stringify(taskId)} was deleted while it was being read.`)
}

/** Sessions of an ended task were retried during the read, so the response would mix two states. */
function reopenedMeanwhile(taskId: string): RolloutError {
  return new RolloutError(
    'request.conflict',
    `Task ${JSON.stringify(taskId)} was retried while it was being read; repeat the request.`,
  )
}

/**
 * Opens the body of a callback; undefined if the task does not exist, or runs again and so will have another callback. The
 * bytes are the same each time.
 */
export async function openTaskResult(taskId: string, deps: ResultDeps): Promise<AsyncIterable<Uint8Array> | undefined> {
  const task = await deps.dispatch.tasks.findProgress(taskId)
  if (task === undefined || task.status === 'running') return undefined
  return renderTask(task, { results: 'inline', counts: false }, deps)
}
