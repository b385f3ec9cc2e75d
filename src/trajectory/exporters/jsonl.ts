import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { Trace } from '../../model/trajectory.ts'
import { toTrace } from '../to-trace.ts'
import { sampleExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({ kind: z.literal('jsonl') })

/** One trace per line with NVIDIA Polar's field names, validated against the schema. */
export const jsonl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: () => sampleExporter('jsonl', (sample) => Trace.parse(toTrace(sample))),
}
