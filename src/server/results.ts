import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { JsonStream, StoredJson } from '../api/json-stream.ts'
import { readAll } from '../api/limit-stream.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionResult } from '../model/session.ts'
import type { ResultReference } from '../store/dispatch.ts'
import { type Ending, listEndings } from '../store/dispatch/query-tasks.ts'
import type { ServerDeps } from './deps.ts'
import { type EndedSession, makeResult, makeUnreadable } from './made-result.ts'
import { findProgress, type TaskProgress } from './task-progress.ts'

type ResultDeps = Pick<ServerDeps, 'database' | 'files' | 'logger'>
type EndedResult = EndedSession & { result?: ResultReference }

const PAGE = 200

/** How the sessions of a task ended, in order, read page by page. */
export async function* readEndings(
  { database }: Pick<ServerDeps, 'database'>,
  taskId: string,
  { after = 0, upTo = Infinity }: { after?: number; upTo?: number } = {},
): AsyncGenerator<Ending> {
  for (let place = after; ;) {
    const page = await listEndings(database.db, taskId, { after: place, limit: PAGE })
    for (const ending of page) {
      if (ending.place > upTo) return
      place = ending.place
      yield ending
    }
    if (page.length < PAGE) return
  }
}

/** The JSON of one result: as the node wrote it, or as we have to make it. */
export async function openResult(ending: EndedResult, { database, files, logger }: ResultDeps): Promise<JsonStream> {
  if (ending.result === undefined) return toStream(makeResult(ending))
  try {
    const { stream, bytes } = await files.open(ending.result.path)
    return new StoredJson(stream, bytes)
  } catch (error) {
    if ((await findProgress(database.db, ending.taskId)) === undefined) throw deletedMeanwhile(ending.taskId)
    logger.error({ err: error, sessionId: ending.sessionId }, 'the result of a session cannot be read')
    return toStream(makeUnreadable(ending, error))
  }
}

/** The same as text, opened when it is first asked for. */
export async function* readResult(ending: EndedResult, deps: ResultDeps): AsyncGenerator<Uint8Array> {
  const json = await openResult(ending, deps)
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
 * A task as NVIDIA Polar shows it, with what its sessions brought spliced in as it is. One result is read at a time, and
 * of that only a piece, so a task of any size takes no memory.
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
  yield Buffer.from(`{"task_id":${JSON.stringify(task.taskId)},"status":"${task.status}","results":[`)
  let isFirst = true
  let place = 0
  let current = 0
  // Those that end from now on are not counted above, and so not shown.
  for await (const ending of readEndings(deps, task.taskId, { upTo: task.endings })) {
    place = ending.place
    if (!ending.isCurrent) continue
    current += 1
    if (ending.result !== undefined) paths.push(ending.result.path)
    if (results === 'reference') continue
    if (!isFirst) yield COMMA
    isFirst = false
    yield* readResult({ ...ending, taskId: task.taskId }, deps)
  }
  if (place < task.endings) throw deletedMeanwhile(task.taskId)
  if (task.status !== 'running' && current < task.ended) throw reopenedMeanwhile(task.taskId)
  const totals = counts ? `,"total_sessions":${task.need},"completed_sessions":${task.ended}` : ''
  yield Buffer.from(`],"result_paths":${JSON.stringify(paths)}${totals}}`)
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
