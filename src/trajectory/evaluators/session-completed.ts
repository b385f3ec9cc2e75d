import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { Evaluator, EvaluatorDeps } from './evaluator.ts'

const SessionCompletedConfig = z.strictObject({ kind: z.literal('session_completed') })

/** Reward 1 if the harness ended on its own without an error. Does not check the agent's work. */
export const sessionCompleted: Plug<typeof SessionCompletedConfig, EvaluatorDeps, Evaluator> = {
  config: SessionCompletedConfig,
  create: () => ({
    needs: { sandbox: false, agentState: false, messages: false },
    evaluate: async ({ ending, signal }) => {
      signal.throwIfAborted()
      return {
        outcome_reward: ending.kind === 'completed' ? 1 : 0,
        metadata: { ending: ending.kind, exit_code: ending.exitCode },
      }
    },
  }),
}
