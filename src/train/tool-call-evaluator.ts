import * as z from 'zod'
import type { Plug } from '../lib/plug.ts'
import type { Evaluator, EvaluatorDeps } from '../trajectory/evaluators/evaluator.ts'
import { gradeToolCall } from './tool-call-reward.ts'

const ToolCallConfig = z.strictObject({ kind: z.literal('tool_call'), path: z.string() })

/** Grades the sessions of `polar train-demo`. Tasks load it as a module, as they load an evaluator of your own. */
export const evaluator: Plug<typeof ToolCallConfig, EvaluatorDeps, Evaluator> = {
  config: ToolCallConfig,
  create: ({ path }) => ({
    needs: { sandbox: false, agentState: false, messages: true },
    evaluate: async (evaluation) => ({ outcome_reward: gradeToolCall(evaluation.transcript(), path), metadata: {} }),
  }),
}
