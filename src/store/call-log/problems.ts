import { RolloutError } from '../../model/failure.ts'
import { type OpenHeader, SCHEMA_VERSION } from './record.ts'

export function corrupt(path: string, offset: number, problem: string): RolloutError {
  const message = `The call log ${path} is damaged at byte ${offset}; ${problem}. Load it with salvage to get the undamaged records.`
  return new RolloutError('store.corrupt', message)
}

/** Throws unless this is the opening record of that session, in a supported schema. */
export function checkOpening(header: OpenHeader, sessionId: string, path: string): void {
  if (header.schemaVersion > SCHEMA_VERSION) {
    const message =
      `Session ${sessionId} was recorded by a newer version of Polar (log schema ${header.schemaVersion}, ` +
      `this version supports up to ${SCHEMA_VERSION}). Update Polar to read it.`
    throw new RolloutError('store.newer-schema', message)
  }
  if (header.id !== sessionId) {
    const message = `The call log ${path} belongs to session ${header.id}, not to ${sessionId}. Move it back to its own directory.`
    throw new RolloutError('store.corrupt', message)
  }
}

export function unfinishedReason(turnId: string): string {
  return `turn ${turnId} has a start but no end`
}
