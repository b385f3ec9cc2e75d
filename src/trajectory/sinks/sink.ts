import type { ScoredSession } from '../score-session.ts'

/** Destination of an export. After a crash it contains only complete sessions and, except for streams, can be resumed. */
export interface ExportSink extends AsyncDisposable {
  /** Sessions and samples of the interrupted export that this one resumes. */
  readonly resumed: { sessions: ReadonlySet<string>; samples: number }
  /** Includes the bytes of the resumed export. */
  readonly bytesWritten: number
  /** Writes one session. Rejects only if the destination fails, which ends the export. */
  add(session: ScoredSession): Promise<void>
  /** Completes the export. Without it, disposal leaves an export that can be resumed. */
  end(): Promise<void>
}

export interface ExportStartOptions {
  /** Whether to continue an interrupted export to the same destination. */
  resume: boolean
  /** Hash of all options that affect the output: only an export with equal options can be resumed. */
  fingerprint: string
}

export const nothingResumed: ExportSink['resumed'] = { sessions: new Set(), samples: 0 }
