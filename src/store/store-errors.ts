import { RolloutError } from '../model/failure.ts'

/** Error codes of the operating system and of PostgreSQL: no connection, or the database is starting or stopping. */
const UNAVAILABLE = /^(?:ECONN|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN|ENOENT|08|57P0|53300)/
/** The same: the disk or the quota is full. */
const OUT_OF_SPACE = /^(?:ENOSPC|EDQUOT|53100)$/
/** Errors of the driver have no code. */
const UNAVAILABLE_TEXT = /connection terminated|timeout exceeded when trying to connect|connection error|not queryable/i

/** Whether the database or the file store is unavailable now, and the same operation may succeed later. */
export function isUnavailable(error: unknown): boolean {
  if (error instanceof RolloutError) return error.code === 'store.unavailable'
  if (!(error instanceof Error)) return false
  if (!('code' in error) || typeof error.code !== 'string') return UNAVAILABLE_TEXT.test(error.message)
  return UNAVAILABLE.test(error.code) || OUT_OF_SPACE.test(error.code)
}

/** Whether the disk of the database is full. */
export function isOutOfSpace(error: unknown): boolean {
  return error instanceof Error && 'code' in error && OUT_OF_SPACE.test(String(error.code))
}
