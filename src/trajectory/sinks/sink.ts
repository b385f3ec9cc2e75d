import type { ScoredSession } from '../score-session.ts'

/** Where an export goes. What it holds after a crash is whole sessions and, where it can, the way to go on. */
export interface ExportSink extends AsyncDisposable {
  /** What an interrupted export had written, and this one goes on from. */
  readonly resumed: { sessions: ReadonlySet<string>; samples: number }
  /** So far, the resumed ones included. */
  readonly bytesWritten: number
  /** All of a session. An error is of the place it goes to, and ends the export. */
  add(session: ScoredSession): Promise<void>
  /** Only after this is the export whole. Without it, closing leaves what a later export can go on from. */
  end(): Promise<void>
}

/** How an export that may have been interrupted begins. */
export interface ExportStartOptions {
  /** Go on where an interrupted export to the same place stopped. */
  resume: boolean
  /** Of everything that decides what is written: an export must not go on from one with other options. */
  fingerprint: string
}

export const nothingResumed: ExportSink['resumed'] = { sessions: new Set(), samples: 0 }
