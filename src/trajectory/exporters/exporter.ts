import type { Trace } from '../../model/trajectory.ts'

/** Writes training samples in one consumer's format. Streams: never holds more than one sample. */
export interface Exporter {
  readonly name: string
  /** Text of the output, piece by piece. */
  render(traces: AsyncIterable<Trace> | Iterable<Trace>): AsyncIterable<string>
}
