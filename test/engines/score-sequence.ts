import * as z from 'zod'
import type { RealEngine } from './real-engine.ts'
import type { Score } from './measure-sessions.ts'

const Scored = z.looseObject({
  choices: z.tuple([
    z.looseObject({
      prompt_logprobs: z.array(z.record(z.string(), z.looseObject({ logprob: z.number() })).nullable()),
    }),
  ]),
})

/** Teacher forcing by vLLM: the log probabilities of a prompt's own tokens. */
export function scoreByVllm(engine: Pick<RealEngine, 'post' | 'model'>): Score {
  return async (ids) => {
    const body = { model: engine.model, prompt: ids, max_tokens: 1, temperature: 1, prompt_logprobs: 0 }
    const answer = await engine.post('/v1/completions', body)
    if (!answer.ok) throw new Error(`Scoring failed with ${answer.status}: ${await answer.text()}`)
    const { choices } = Scored.parse(await answer.json())
    return choices[0].prompt_logprobs.map((position, i) => position?.[String(ids[i])]?.logprob)
  }
}

const Probabilities = z.looseObject({
  completion_probabilities: z.tuple([
    z.looseObject({ top_logprobs: z.array(z.looseObject({ id: z.int(), logprob: z.number() })) }),
  ]),
})

/** Teacher forcing by llama.cpp, which scores no prompts: one request for each of the last `count` tokens. */
export function scoreByLlamacpp(engine: Pick<RealEngine, 'post'>, vocabularySize: number, count: number): Score {
  return async (ids) => {
    const scored: (number | undefined)[] = ids.map(() => undefined)
    for (let at = Math.max(1, ids.length - count); at < ids.length; at++) {
      const body = { prompt: ids.slice(0, at), n_predict: 1, n_probs: vocabularySize, temperature: 1 }
      const answer = await engine.post('/completion', body)
      const { completion_probabilities: positions } = Probabilities.parse(await answer.json())
      scored[at] = positions[0].top_logprobs.find(({ id }) => id === ids[at])?.logprob
    }
    return scored
  }
}
