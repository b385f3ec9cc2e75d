import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createRandom } from '../../packages/tiny-engine/src/inference/random.ts'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { createModelPolicy, type ModelPolicy } from '../../packages/tiny-engine/src/policies/model.ts'
import type { SamplingParams } from '../../packages/tiny-engine/src/policies/policy.ts'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { commonPrefix } from '../../src/lib/collections/common-prefix.ts'
import { createLowRank } from '../../src/train/low-rank.ts'
import { summarise } from '../../src/train/report.ts'
import { train, type StepReport, type TrainDeps, type TrainOptions } from '../../src/train/train.ts'
import { TrainDataError, type TrainSession } from '../../src/train/train-session.ts'

/** The trainer and the real model without server and harness: short answers, so that a run takes seconds. */

const STEPS = 5
const SAMPLES = 8
const WORDS = ['docs', 'music']
const SEED = 1

const options: TrainOptions = {
  steps: STEPS,
  epochs: 4,
  clip: 0.2,
  advantages: 'grpo-std',
  adam: { learningRate: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-3 },
  maxLag: 0,
  tolerance: 1e-4,
}

const sampling: SamplingParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
  maxTokens: 6,
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
  n: SAMPLES,
  topLogprobs: 0,
}

let policy: ModelPolicy
let tokenizer: Tokenizer
beforeAll(async () => {
  policy = await createModelPolicy({ workers: 1 })
  tokenizer = await loadTokenizer(embeddedModelFolder())
})
afterAll(() => policy[Symbol.asyncDispose]())

/** Asks for a word in brackets, after two examples. */
function promptOf(word: string): Int32Array {
  const example = (one: string) => `<|im_start|>user\n${one}<|im_end|>\n<|im_start|>assistant\n[${one}]<|im_end|>\n`
  return tokenizer.encode(
    `${example('src')}${example('test')}<|im_start|>user\n${word}<|im_end|>\n<|im_start|>assistant\n`,
  )
}

/** Share of the right answer that the answer begins with. */
function rewardOf(ids: readonly number[], word: string): number {
  const right = `[${word}]<|im_end|>`
  return commonPrefix(tokenizer.decode(ids), right) / right.length
}

async function sampleGroup(word: string, step: number, version: number): Promise<TrainSession[]> {
  const promptIds = promptOf(word)
  const { signal } = new AbortController()
  const seed = SEED * 1_000_000 + step * 1000 + WORDS.indexOf(word) * 100
  const generation = await policy.start({ id: word, promptIds, sampling: { ...sampling, seed }, signal })
  return Promise.all(
    Array.from({ length: SAMPLES }, async (_, choice) => {
      const tokens = await Array.fromAsync(generation.sample(choice))
      const ids = tokens.map(({ id }) => id)
      const call = {
        promptIds,
        ids: Int32Array.from(ids),
        logprobs: Float32Array.from(tokens, ({ logprob }) => logprob),
        versions: new Int32Array(ids.length).fill(version),
      }
      return { id: `${word}-${choice}`, group: word, reward: rewardOf(ids, word), calls: [call] }
    }),
  )
}

async function sample(step: number, version: number): Promise<TrainSession[]> {
  return (await Promise.all(WORDS.map((word) => sampleGroup(word, step, version)))).flat()
}

type Change = (sessions: TrainSession[]) => TrainSession[]

/** Trains on batches that `change` has changed. */
async function run(change: Change = (sessions) => sessions): Promise<StepReport[]> {
  const reports: StepReport[] = []
  const deps: TrainDeps = {
    sample: async (step, version) => change(await sample(step, version)),
    read: (promptIds, ids) => policy.score(promptIds, ids, { withPredictions: true }),
    load: (_, lowRank) => policy.setOutputWeights({ lowRank }),
    now: () => 0,
    onStep: (report) => void reports.push(report),
  }
  await train(createLowRank(8, policy, createRandom(SEED)), options, deps)
  return reports
}

describe('training of the tiny model', () => {
  test('the reward rises, and captured log probabilities are those of teacher forcing', async () => {
    const steps = await run()
    expect(summarise({ steps })).toMatchObject({ hasLearned: true })
    expect(Math.max(...steps.map(({ maxLogprobError }) => maxLogprobError))).toBeLessThan(1e-5)
  })

  test('with rewards of other sessions of the same group, the reward does not rise', async () => {
    const steps = await run((sessions) =>
      sessions.map((session, i) => {
        const group = sessions.filter(({ group: other }) => other === session.group)
        return { ...session, reward: group[(i + 1) % group.length]!.reward }
      }),
    )
    expect(summarise({ steps })).toMatchObject({ hasLearned: false })
  })

  test('a batch with log probabilities of other tokens is rejected', async () => {
    const shuffled = run((sessions) =>
      sessions.map((session) => ({
        ...session,
        calls: session.calls.map((call) => ({ ...call, logprobs: call.logprobs.toReversed() })),
      })),
    )
    await expect(shuffled).rejects.toThrow(TrainDataError)
  })
})
