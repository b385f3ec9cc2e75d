import { type FileHandle, open, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Limit } from '../../lib/async/limit.ts'
import { describeError, errnoOf } from '../../lib/fs/errno.ts'
import type { LockFile } from '../../lib/fs/lock-file.ts'
import { type Failure, RolloutError } from '../../model/failure.ts'
import { isId } from '../../model/ids.ts'
import type { Delivery } from '../../model/turn.ts'
import type { SessionLog, SessionOpening, TurnEnd, TurnIntent } from '../store.ts'
import { AppendFile, type Durability, type FileIo } from './append-file.ts'
import type { BufferPool } from './byte-writer.ts'
import type { LogPaths } from './log-path.ts'
import { packLog } from './pack.ts'
import { unfinishedReason } from './problems.ts'
import { RecentPrompts } from './recent-prompts.ts'
import { RecentTexts } from './recent-texts.ts'
import { type Column, type LogRecord, RecordKind, SCHEMA_VERSION, writeRecord } from './record.ts'

export interface CallLogDeps {
  paths: LogPaths
  io: FileIo
  pool: BufferPool
  syncLimit: Limit
  durability: Durability
  now: () => number
  /** A closed log larger than this is compressed. */
  packAboveBytes: number
  onClosed: (log: CallLog) => void
}

/** Contents of an existing file that is opened for writing. */
export interface LogState {
  /** Number of complete records. `size`: their bytes. */
  records: number
  size: number
  turns: number
  unfinished: Set<string>
  /** Undefined for a new file. */
  resumed?: { cleanly: boolean; droppedBytes: number }
  /** Reasons why the session is incomplete in any case. */
  reasons: string[]
}

/** A locked file, or the reason why it could not be opened. */
export type LogFile = { handle: FileHandle; lock: LockFile; state: LogState } | { failure: Failure }

/** The log of one session. See `SessionLog` for its guarantees. */
export class CallLog implements SessionLog, AsyncDisposable {
  readonly sessionId: string
  readonly #deps: CallLogDeps
  readonly #file: { handle: FileHandle; lock: LockFile; appends: AppendFile } | undefined
  #texts = new RecentTexts()
  #prompts = new RecentPrompts()
  readonly #unfinished: Set<string>
  readonly #reasons: string[]
  #broken: Failure | undefined
  #records = 0
  #turns = 0
  /** A record that should be in the file is missing. */
  #lost = false
  #closing: Promise<void> | undefined

  constructor(session: SessionOpening, file: LogFile, deps: CallLogDeps) {
    this.sessionId = session.id
    this.#deps = deps
    if ('failure' in file) {
      this.#broken = file.failure
      this.#unfinished = new Set()
      this.#reasons = []
      return
    }
    const { handle, lock, state } = file
    const onFailure = (error: unknown): void => this.#break(writeFailure(deps.paths.log, error))
    this.#file = { handle, lock, appends: new AppendFile(handle.fd, state.size, { ...deps, onFailure }) }
    this.#unfinished = state.unfinished
    this.#reasons = state.reasons
    this.#records = state.records
    this.#turns = state.turns
    const { isContinued = false, ...opening } = session
    const continued = isContinued ? { isContinued } : {}
    const resumed = state.resumed === undefined ? undefined : { at: deps.now(), ...state.resumed, ...continued }
    const header = { schemaVersion: SCHEMA_VERSION, ...opening, resumed }
    this.#append(RecordKind.open, () => ({ record: { kind: RecordKind.open, header } }))
    if (isContinued) this.#failUnfinished()
  }

  get broken(): Failure | undefined {
    return this.#broken
  }

  get turns(): number {
    return this.#turns
  }

  get bytes(): number {
    return this.#file?.appends.length ?? 0
  }

  appendIntent(intent: TurnIntent): void {
    this.#turns += 1
    this.#append(RecordKind.intent, () => {
      this.#unfinished.add(intent.id)
      const { request, ...header } = intent
      const { middle, base } = this.#texts.share(this.#records, request)
      return { record: { kind: RecordKind.intent, header: { ...header, base } }, columns: [middle] }
    })
  }

  appendEnd(end: TurnEnd): Promise<void> {
    this.#append(RecordKind.end, () => {
      if (!this.#unfinished.delete(end.turnId)) this.#reasons.push(`turn ${end.turnId} has an end without a start`)
      const { response, ...header } = end
      if (response === undefined) return { record: { kind: RecordKind.end, header } }
      const { promptIds, choices, ...about } = response
      const sampled = choices.map((choice) => choice.ids)
      const { tail, base } = this.#prompts.share(this.#records, promptIds, sampled)
      const heads = choices.map(({ ids: _ids, logprobs: _logprobs, ...head }) => head)
      return {
        record: { kind: RecordKind.end, header: { ...header, base, response: { ...about, choices: heads } } },
        columns: [tail, ...choices.flatMap(({ ids, logprobs }) => [ids, logprobs])],
      }
    })
    return this.#file?.appends.settle() ?? Promise.resolve()
  }

  appendDelivery(turnId: string, delivery: Delivery): void {
    this.#append(RecordKind.delivery, () => ({ record: { kind: RecordKind.delivery, header: { turnId, delivery } } }))
  }

  /** Resolves when all earlier appends are written or failed. */
  flush(): Promise<void> {
    return this.#file?.appends.flush() ?? Promise.resolve()
  }

  close(): Promise<void> {
    // Appends the close record synchronously; a later append is rejected as late.
    this.#closing ??= this.#close().finally(() => this.#deps.onClosed(this))
    return this.#closing
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(): Promise<void> {
    const { paths, packAboveBytes, syncLimit, durability, now } = this.#deps
    const reasons = [...new Set([...this.#reasons, ...[...this.#unfinished].map(unfinishedReason)])]
    const counts = { turns: this.#turns, records: this.#records }
    const header = { closedAt: now(), complete: reasons.length === 0, reasons, ...counts }
    this.#append(RecordKind.close, () => ({ record: { kind: RecordKind.close, header } }))
    this.#clearRecent()
    const file = this.#file
    if (file !== undefined) {
      await file.appends.end()
      await file.handle.close().catch((error: unknown) => this.#break(writeFailure(paths.log, error)))
    }
    if (this.#lost) await this.#writeMark()
    if (file === undefined) return
    if (this.#broken === undefined) {
      // An uncompressed log is as valid, only larger.
      if (file.appends.size > packAboveBytes) await packLog(paths.log, this.#deps).catch(() => undefined)
      if (durability === 'process') await syncLimit(() => syncNames(paths))
    }
    // A lock that cannot be removed is taken over by the next process.
    await file.lock.release().catch(() => undefined)
  }

  /** Ends the calls that were in flight when the earlier writer ended. */
  #failUnfinished(): void {
    const { failure } = new RolloutError('session.gateway-lost', 'The gateway process ended during this call.')
    const endedAt = this.#deps.now()
    for (const turnId of this.#unfinished) {
      const header = { turnId, endedAt, forced: {}, failure }
      this.#append(RecordKind.end, () => ({ record: { kind: RecordKind.end, header } }))
    }
    this.#unfinished.clear()
  }

  #append(kind: RecordKind, build: () => { record: LogRecord; columns?: readonly Column[] }): void {
    if (this.#closing !== undefined) {
      this.#rejectLate(kind)
    } else if (this.#file === undefined || this.#broken !== undefined) {
      // A missing close record already means incomplete, and a log that another process holds may be complete.
      if (kind !== RecordKind.close) this.#lost = true
    } else {
      try {
        const { record, columns } = build()
        this.#file.appends.append((writer) => writeRecord(writer, record, this.#records, columns))
        this.#records += 1
      } catch (error) {
        this.#break(encodingFailure(this.#deps.paths.log, error))
      }
    }
  }

  #rejectLate(kind: RecordKind): void {
    // Without a delivery record the delivery reads as `unknown`, which is correct.
    if (kind === RecordKind.delivery) return
    this.#break(lateFailure(this.#deps.paths.log))
    void this.#writeMark()
  }

  #break(failure: Failure): void {
    this.#broken ??= failure
    this.#lost = true
    this.#clearRecent()
  }

  /** No later record will refer to earlier turns. */
  #clearRecent(): void {
    this.#texts = new RecentTexts()
    this.#prompts = new RecentPrompts()
  }

  /** Marks the log as incomplete in a separate file, because its close record is missing or wrong. */
  async #writeMark(): Promise<void> {
    if (!isId(this.sessionId)) return
    await writeFile(this.#deps.paths.mark, `${this.#broken?.message ?? ''}\n`, { mode: 0o600 }).catch(() => undefined)
  }
}

/** Makes the directory entries survive a loss of power. File systems that cannot sync directories are ignored. */
export async function syncNames({ directory }: LogPaths): Promise<void> {
  for (const path of [directory, dirname(directory)]) {
    const handle = await open(path, 'r').catch(() => undefined)
    await handle?.sync().catch(() => undefined)
    await handle?.close()
  }
}

const ADVICE: Readonly<Record<string, string>> = {
  EACCES: 'Allow this user to write there',
  EDQUOT: 'Free some space or raise the quota',
  EIO: 'Check the disk',
  EMFILE: 'Raise the limit on open files (ulimit -n)',
  ENOSPC: 'Free some space',
  ENOTDIR: 'Move that file',
  EPERM: 'Allow this user to write there',
  EROFS: 'Mount the file system writable',
}

export function writeFailure(path: string, error: unknown): Failure {
  if (error instanceof RolloutError) return error.failure
  const advice = ADVICE[errnoOf(error) ?? '']
  const message =
    `The call log ${path} cannot be written: ${describeError(error)}. ` +
    `${advice === undefined ? 'Choose' : `${advice}, or choose`} another directory for the logs; ` +
    'calls continue, but this session is incomplete.'
  const isFull = FULL.has(errnoOf(error) ?? '')
  return new RolloutError('store.unavailable', message, { cause: error, ...(isFull && { status: 503 }) }).failure
}

/** Status 503: later calls of the session are rejected, because the disk is still full. */
const FULL: ReadonlySet<string> = new Set(['ENOSPC', 'EDQUOT'])

function encodingFailure(path: string, error: unknown): Failure {
  const message = `A record for the call log ${path} cannot be encoded: ${describeError(error)}; this session is incomplete.`
  return new RolloutError('internal.bug', message, { cause: error }).failure
}

function lateFailure(path: string): Failure {
  const message = `The call log ${path} was closed before its last record was appended; this session is incomplete.`
  return new RolloutError('internal.bug', message).failure
}
