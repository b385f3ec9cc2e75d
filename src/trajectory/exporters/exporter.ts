import type { Sample } from '../../model/sample.ts'
import type { ScoredSession } from '../score-session.ts'

/** Writes training samples in the format of one consumer. Keeps at most a part of one file in memory. */
export interface Exporter {
  readonly name: string
  /** File extension without a dot. */
  readonly extension: string
  /**
   * Whether a file can be truncated after any session and continued later, because each session is written on its own. Other
   * formats are written as a folder of complete parts.
   */
  readonly isAppendable: boolean
  /** Required values. Samples without them are not written, because the format cannot express that they are missing. */
  readonly needs?: readonly ExportNeed[]
  /** Whether a row contains only the messages of a sample, and no token ids. Absent: false. */
  readonly isTextOnly?: boolean
  /** Starts one file. */
  open(start?: ExportStart): ExportWriter
}

/** `logprobs`: a log probability of every trained token. */
export type ExportNeed = 'reward' | 'logprobs'

/** Sessions and samples before the start of a file, for formats with running numbers. */
export interface ExportStart {
  sessions: number
  samples: number
}

export interface ExportWriter {
  /** Adds a session. Yields the text or bytes that can be written now, possibly nothing. */
  add(session: ScoredSession): Iterable<string | Uint8Array>
  /** Yields the end of the file. */
  end(): Iterable<string | Uint8Array>
}

type ToValues = (session: ScoredSession) => Iterable<unknown>

/** Returns an exporter that writes one JSON value per line. `open` starts one file. */
export function lineExporter(
  name: string,
  open: (start: ExportStart) => ToValues,
  needs?: readonly ExportNeed[],
): Exporter {
  return {
    name,
    extension: 'jsonl',
    isAppendable: true,
    needs,
    open(start = { sessions: 0, samples: 0 }) {
      const toValues = open(start)
      return {
        *add(session) {
          for (const value of toValues(session)) yield `${JSON.stringify(value)}\n`
        },
        end: () => [],
      }
    },
  }
}

/** Returns an exporter that writes one line of text per sample; undefined: none for this sample. */
export function textExporter(name: string, toRow: (sample: Sample) => unknown): Exporter {
  return { ...sampleExporter(name, toRow), isTextOnly: true }
}

/** Returns an exporter that writes one line per sample; undefined: none for this sample. */
export function sampleExporter(name: string, toRow: (sample: Sample) => unknown): Exporter {
  return lineExporter(
    name,
    () =>
      function* (session) {
        for (const sample of session.samples()) {
          const row = toRow(sample)
          if (row !== undefined) yield row
        }
      },
  )
}
