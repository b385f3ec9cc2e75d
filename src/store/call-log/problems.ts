import { RolloutError } from '../../model/failure.ts'
import { type OpenHeader, SCHEMA_VERSION } from './record.ts'

export function corrupt(path: string, offset: number, what: string): RolloutError {
  const message = `The call log ${path} is damaged at byte ${offset}; ${what}. Load it with salvage to get what is whole.`
  return new RolloutError('store.corrupt', message)
}

/** Throws unless this is the beginning of that session's log, in a schema we know. */
export function checkOpening(header: OpenHeader, sessionId: string, path: string): void {
  if (header.schemaVersion > SCHEMA_VERSION) {
    const message =
      `Session ${sessionId} was recorded by a newer version of Polar (log schema ${header.schemaVersion}, ` +
      `this one knows up to ${SCHEMA_VERSION}). Update Polar to use it.`
    throw new RolloutError('store.newer-schema', message)
  }
  if (header.id !== sessionId) {
    const message = `The call log ${path} is that of session ${header.id}, not of ${sessionId}. Move it back to its own directory.`
    throw new RolloutError('store.corrupt', message)
  }
}

export function unfinishedReason(turnId: string): string {
  return `turn ${turnId} has a start but no end`
}
