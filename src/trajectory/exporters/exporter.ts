import type { ScoredSession } from '../score-session.ts'

/** Writes training samples in one consumer's format. Never holds more than a part of one file. */
export interface Exporter {
  readonly name: string
  /** Of its files, without a dot. */
  readonly extension: string
  /**
   * Whether what one session gives stands for itself, so that a file may be cut after any session and go on later. The
   * others are written as a folder of parts, each whole.
   */
  readonly isAppendable: boolean
  /** Samples without these are not written: its consumer has no way to say that they are missing. None when absent. */
  readonly needs?: readonly ExportNeed[]
  /** One file. */
  open(start?: ExportStart): ExportWriter
}

/** `logprobs`: of every trained token. */
export type ExportNeed = 'reward' | 'logprobs'

/** What the export holds already when a file begins: for formats that number what they write. */
export interface ExportStart {
  sessions: number
  samples: number
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
