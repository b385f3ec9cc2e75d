import type { ScoredSession } from '../score-session.ts'

/** Writes training samples in one consumer's format. Never holds more than a part of one file. */
export interface Exporter {
  readonly name: string
  /** Of its files, without a dot. */
  readonly extension: string
  /** Whether what one session gives stands for itself, so that a file may be cut after any session and go on later. */
  readonly isAppendable: boolean
  /** One file. */
  open(): ExportWriter
}

export interface ExportWriter {
  /** What may be written once this session is in: text, bytes, or nothing yet. */
  add(session: ScoredSession): Iterable<string | Uint8Array>
  /** What ends the file. */
  end(): Iterable<string | Uint8Array>
}

/** A writer of one JSON value a line, each session for itself. */
export function lineWriter(toValues: (session: ScoredSession) => Iterable<unknown>): ExportWriter {
  return {
    *add(session) {
      for (const value of toValues(session)) yield `${JSON.stringify(value)}\n`
    },
    end: () => [],
  }
}
