import { join } from 'node:path'

/** The files of one session. The id must have been checked: it becomes part of a path. */
export interface LogPaths {
  directory: string
  log: string
  lock: string
  /** Says in words that records are missing, where the log itself could no longer be written. */
  mark: string
}

export function logPaths(dir: string, sessionId: string): LogPaths {
  const directory = join(dir, sessionId)
  return {
    directory,
    log: join(directory, 'calls.plog'),
    lock: join(directory, 'lock'),
    mark: join(directory, 'INCOMPLETE'),
  }
}
