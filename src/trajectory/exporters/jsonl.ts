import { Trace } from '../../model/trajectory.ts'
import type { Exporter } from './exporter.ts'

/** One trace a line, NVIDIA Polar's field names. Checked against the schema on the way out. */
export const jsonl: Exporter = {
  name: 'jsonl',
  async *render(traces) {
    for await (const trace of traces) yield `${JSON.stringify(Trace.parse(trace))}\n`
  },
}
