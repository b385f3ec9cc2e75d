import { readFile } from 'node:fs/promises'
import * as z from 'zod'
import type { Plug } from '../../../src/lib/plug.ts'
import type { Evaluator, EvaluatorDeps } from '../../../src/trajectory/evaluators/evaluator.ts'

const AnswerConfig = z.strictObject({ kind: z.literal('answer'), expected: z.string() })

/** The example of docs/evaluators.md. */
export const evaluator: Plug<typeof AnswerConfig, EvaluatorDeps, Evaluator> = {
  config: AnswerConfig,
  create: ({ expected }) => ({
    needs: { sandbox: false, agentState: false },
    async collect(agent, { submission }) {
      await agent.download('answer.txt', `${submission}/answer.txt`, { maxBytes: 10_000, maxFiles: 1 })
    },
    async evaluate({ submission, evidence }) {
      const answer = await readFile(`${submission}/answer.txt`, 'utf8')
      await evidence.write('answer.txt', answer)
      return { outcome_reward: answer.trim() === expected ? 1 : 0, metadata: {} }
    },
  }),
}
