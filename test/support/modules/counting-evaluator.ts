import { appendFile } from 'node:fs/promises'
import * as z from 'zod'
import type { Plug } from '../../../src/lib/plug.ts'
import type { Evaluator, EvaluatorDeps } from '../../../src/trajectory/evaluators/evaluator.ts'

const Config = z.strictObject({ kind: z.literal('counting'), log: z.string(), seconds: z.number().default(0) })

/** Writes a line outside all sandboxes for each grading. */
export const evaluator: Plug<typeof Config, EvaluatorDeps, Evaluator> = {
  config: Config,
  create: ({ log, seconds }) => ({
    needs: { sandbox: true, agentState: false },
    async evaluate({ sessionId, grader }) {
      await appendFile(log, `${sessionId}\n`)
      const workspace = await grader()
      await workspace.run({ command: ['sleep', String(seconds)] })
      return { outcome_reward: 0.5, metadata: {} }
    },
  }),
}
