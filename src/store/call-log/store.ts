import { constants, type FileHandle, open, unlink } from 'node:fs/promises'
import { endianness } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLimit } from '../../lib/async/limit.ts'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import {
  acquireLockFile,
  identifyProcess,
  type LockFile,
  type LockOutcome,
  type ProcessIdentity,
} from '../../lib/fs/lock-file.ts'
import { makeDirectories } from '../../lib/fs/make-directories.ts'
import { type Failure, RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import type { SessionOpening, SessionStore } from '../store.ts'
import { type Durability, type FileIo, nodeFileIo } from './append-file.ts'
import { BufferPool } from './byte-writer.ts'
import { CallLog, type CallLogDeps, type LogFile, type LogState, syncNames, writeFailure } from './call-log.ts'
import { type LogPaths, logPaths } from './log-path.ts'
import { checkOpening, corrupt } from './problems.ts'
import { RecordKind } from './record.ts'
import { scanRecords } from './scan.ts'

const LOCK_POLL_MS = 50
const NOT_CONTINUED = 'no records are added to it'
const UNCLEAN = 'an earlier writer stopped without closing the log; its last calls may be missing'

export interface CallLogOptions {
  /** Contains one directory per session; created if missing. */
  dir: string
  /** Durability of an awaited append. Default `process`: survives a crash of this process, not of the machine. */
  durability?: Durability
  /** Unix milliseconds. */
  now?: () => number
  /** A closed log larger than this is compressed. Default 64 KiB. */
  packAboveBytes?: number
  /** How long to wait for the lock of another process that is ending. Default 0. */
  lockWaitMs?: number
  /** System calls for writing; tests replace them. */
  io?: FileIo
}

export interface CallLogStore extends SessionStore {
  open(session: SessionOpening): Promise<CallLog>
}

/** Stores each session in an append-only file below one directory. Several stores may share it. */
export function createCallLogStore(options: CallLogOptions): CallLogStore {
  if (endianness() !== 'LE') throw new RolloutError('config.invalid', 'Call logs need a little-endian machine.')
  const { durability = 'process', lockWaitMs = 0 } = options
  const shared = {
    durability,
    io: options.io ?? nodeFileIo,
    now: options.now ?? Date.now,
    packAboveBytes: options.packAboveBytes ?? 64 * 1024,
    pool: new BufferPool(),
    // A sync occupies one of Node's four threads for milliseconds, and writes need the rest. With `disk` two syncs may
    // run, because a journalling file system serves two as fast as one.
    syncLimit: createLimit(durability === 'disk' ? 2 : 1),
  }
  const logs = new Set<CallLog>()
  let identity: Promise<ProcessIdentity> | undefined

  return {
    async open(session) {
      const paths = logPaths(options.dir, session.id)
      const deps: CallLogDeps = { ...shared, paths, onClosed: (closed) => logs.delete(closed) }
      identity ??= identifyProcess()
      const self = await identity
      const file = isId(session.id)
        ? await openFile(paths, session, { durability, self, lockWaitMs })
        : notAnId(session.id)
      const log = new CallLog(session, file, deps)
      logs.add(log)
      // Detects a full disk before the first call.
      await log.flush()
      return log
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([...logs].map((log) => log.close()))
    },
  }
}

async function openFile(
  paths: LogPaths,
  session: SessionOpening,
  { durability, self, lockWaitMs }: { durability: Durability; self: ProcessIdentity; lockWaitMs: number },
): Promise<LogFile> {
  let lock: LockFile | undefined
  let handle: FileHandle | undefined
  try {
    await makeDirectories(paths.directory, 0o700)
    const outcome = await acquireInTime(paths.lock, self, lockWaitMs)
    if ('heldBy' in outcome) return { failure: alreadyOpen(paths, session.id, outcome.heldBy) }
    lock = outcome.lock
    const flags = constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY
    handle = await open(paths.log, flags, 0o600).catch(ignoreErrno('EEXIST'))
    if (handle !== undefined) {
      if (durability === 'disk') await syncNames(paths)
      return { handle, lock, state: emptyState() }
    }
    handle = await open(paths.log, constants.O_RDWR | constants.O_NOFOLLOW)
    return { handle, lock, state: await resume(handle, paths, session) }
  } catch (error) {
    await handle?.close().catch(() => undefined)
    await lock?.release().catch(() => undefined)
    return { failure: writeFailure(paths.log, error) }
  }
}

async function acquireInTime(path: string, self: ProcessIdentity, waitMs: number): Promise<LockOutcome> {
  const deadline = performance.now() + waitMs
  for (;;) {
    const outcome = await acquireLockFile(path, self)
    if ('lock' in outcome || performance.now() >= deadline) return outcome
    await sleep(LOCK_POLL_MS)
  }
}

function emptyState(): LogState {
  return { records: 0, size: 0, turns: 0, unfinished: new Set(), reasons: [] }
}

/**
 * Prepares a file of an earlier writer for appending: truncates an incomplete last record and counts the others. A file with
 * damage before its end is not changed, because truncating it would destroy the records that follow.
 */
async function resume(handle: FileHandle, paths: LogPaths, session: SessionOpening): Promise<LogState> {
  await unlink(`${paths.log}.packing`).catch(() => undefined)
  const state = emptyState()
  let cleanly = false
  let droppedBytes = 0
  state.size = (await handle.stat()).size
  for await (const event of scanRecords(handle)) {
    if (event.type === 'damage') throw corrupt(paths.log, event.offset, NOT_CONTINUED)
    if (event.type === 'torn') {
      droppedBytes = event.bytes
      await handle.truncate(event.offset)
      state.size = event.offset
      break
    }
    const { record } = event
    if (record.kind === RecordKind.open) {
      checkOpening(record.header, session.id, paths.log)
      const { resumed } = record.header
      // That writer found an unclean end, and may have ended before it could write so in a close record.
      if (resumed?.cleanly === false && resumed.isContinued !== true) state.reasons.push(UNCLEAN)
    }
    if (record.sequence !== state.records) throw corrupt(paths.log, event.offset, NOT_CONTINUED)
    if (record.kind === RecordKind.intent) {
      state.turns += 1
      state.unfinished.add(record.header.id)
    }
    if (record.kind === RecordKind.end) state.unfinished.delete(record.header.turnId)
    if (record.kind === RecordKind.close) state.reasons = record.header.reasons
    cleanly = record.kind === RecordKind.close
    state.records += 1
  }
  cleanly &&= droppedBytes === 0
  if (!cleanly && session.isContinued !== true) state.reasons.push(UNCLEAN)
  state.resumed = { cleanly, droppedBytes }
  return state
}

function notAnId(id: string): { failure: Failure } {
  const message = `${JSON.stringify(id)} is not a valid session id, so no call log is written; this session is incomplete.`
  return { failure: new RolloutError('store.unavailable', message).failure }
}

function alreadyOpen(paths: LogPaths, sessionId: string, holder: ProcessIdentity | undefined): Failure {
  const process = holder === undefined ? 'another process' : `process ${holder.pid} on ${holder.host}`
  const message =
    `Session ${sessionId} is being recorded by ${process}. Use another session id; ` +
    `if that process no longer exists, delete ${paths.lock} and ${paths.lock}.takeover.`
  return new RolloutError('store.unavailable', message).failure
}
