import * as z from 'zod'
import type { Plug } from '../lib/plug.ts'
import type { Evaluator, EvaluatorDeps } from '../trajectory/evaluators/evaluator.ts'
import { gradeFormat } from './format-reward.ts'

const FormatConfig = z.strictObject({ kind: z.literal('format'), word: z.string() })

/** Grades the sessions of `polar train-demo`. Tasks load it as a module, as they load an evaluator of your own. */
export const evaluator: Plug<typeof FormatConfig, EvaluatorDeps, Evaluator> = {
  config: FormatConfig,
  create: ({ word }) => ({
    needs: { sandbox: false, agentState: false, messages: true },
    evaluate: async (evaluation) => ({ outcome_reward: gradeFormat(evaluation.transcript(), word), metadata: {} }),
  }),
}
