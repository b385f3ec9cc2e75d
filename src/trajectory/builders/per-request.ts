import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { chainParts, type Builder } from './builder.ts'

const Config = z.strictObject({ kind: z.literal('per_request') })

/** One row per call. The rows repeat every prompt. */
export const perRequest: Plug<typeof Config, object, Builder> = {
  config: Config,
  create: () => ({
    name: 'per_request',
    plan(graph, mayTrain) {
      const rows = graph.nodes
        .filter(mayTrain)
        .map((node) => ({ promptParts: 1, parts: chainParts([node], () => true) }))
      return { rows, leftOut: new Map() }
    },
  }),
}
