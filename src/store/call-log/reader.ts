import { constants, type FileHandle, open, readdir, readFile } from 'node:fs/promises'
import { createLimit } from '../../lib/async/limit.ts'
import { describeError, errnoOf, ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { LoadOptions, SessionOrigin, SessionReader } from '../store.ts'
import { type LogPaths, logPaths } from './log-path.ts'
import { corrupt } from './problems.ts'
import { RecordKind } from './record.ts'
import { scanRecords } from './scan.ts'
import { SessionAssembly } from './session-assembly.ts'

const MAX_PARALLEL_FILES = 8

/** Reads logs of `createCallLogStore` in the same directory, also while they are written. */
export function createCallLogReader({ dir }: { dir: string }): SessionReader {
  return {
    list: async () => (await listSessions(dir)).map(({ id }) => id),
    listOrigins: () => listSessions(dir),
    load: (sessionId, options = {}) => loadSession(dir, sessionId, options),
  }
}

async function listSessions(dir: string): Promise<SessionOrigin[]> {
  const names = await readdir(dir).catch((error: unknown) => {
    if (errnoOf(error) === 'ENOENT') return []
    throw unreadable(`The call logs in ${dir}`, error)
  })
  const limit = createLimit(MAX_PARALLEL_FILES)
  const found = await Promise.all(
    names.filter(isId).map((id) => limit(async () => ({ id, ...(await readOpening(logPaths(dir, id))) }))),
  )
  return found
    .filter(({ createdAt }) => createdAt !== undefined)
    .sort((a, b) => (a.createdAt ?? 0) - (b.createdAt ?? 0) || (a.id < b.id ? -1 : 1))
    .map(({ id, origin = {} }) => ({ id, origin }))
}

/** Empty if there is no log; without an origin if its opening record cannot be read. */
async function readOpening({ log }: LogPaths): Promise<Partial<Pick<SessionRecord, 'createdAt' | 'origin'>>> {
  const handle = await openLog(log).catch(() => undefined)
  if (handle === undefined) return {}
  try {
    for await (const event of scanRecords(handle)) {
      if (event.type === 'record' && event.record.kind === RecordKind.open) return event.record.header
      break
    }
    return { createdAt: await createdByFileSystem(handle) }
  } finally {
    await handle.close()
  }
}

async function loadSession(dir: string, sessionId: string, { salvage = false }: LoadOptions): Promise<SessionRecord> {
  if (!isId(sessionId)) throw new RolloutError('store.unavailable', `${JSON.stringify(sessionId)} is not a session id.`)
  const paths = logPaths(dir, sessionId)
  const handle = await openLog(paths.log).catch((error: unknown) => {
    throw unreadable(`The call log of session ${sessionId} in ${dir}`, error)
  })
  try {
    const assembly = new SessionAssembly(sessionId, paths.log, salvage)
    for await (const event of scanRecords(handle)) {
      if (event.type === 'record') assembly.add(event.record, event.offset)
      else if (event.type === 'torn') assembly.addReason(`a torn tail of ${event.bytes} bytes was dropped`)
      else if (salvage) assembly.addReason(`${event.bytes} damaged bytes at offset ${event.offset} were skipped`)
      else throw corrupt(paths.log, event.offset, 'complete records follow, so this is not a truncated end')
    }
    const mark = await readMark(paths.mark)
    if (mark !== undefined) assembly.addReason(`a write failed: ${mark}`)
    return assembly.finish(await createdByFileSystem(handle))
  } catch (error) {
    throw error instanceof RolloutError ? error : unreadable(`The call log ${paths.log}`, error)
  } finally {
    await handle.close()
  }
}

function openLog(path: string): Promise<FileHandle> {
  return open(path, constants.O_RDONLY | constants.O_NOFOLLOW)
}

/** Replaces the creation time of a log whose opening record is damaged. */
async function createdByFileSystem(handle: FileHandle): Promise<number> {
  const { birthtimeMs, mtimeMs } = await handle.stat()
  return Math.floor(birthtimeMs || mtimeMs)
}

async function readMark(path: string): Promise<string | undefined> {
  return (await readFile(path, 'utf8').catch(ignoreErrno('ENOENT')))?.trim()
}

function unreadable(subject: string, error: unknown): RolloutError {
  const message = `${subject} cannot be read: ${describeError(error)}. Check the directory and the session id.`
  return new RolloutError('store.unavailable', message, { cause: error })
}
