import { join } from 'node:path'

/** Files of one session. The id must be validated: it is part of the paths. */
export interface LogPaths {
  directory: string
  log: string
  lock: string
  /** Contains the reason why records are missing, if the log itself could not be written. */
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
