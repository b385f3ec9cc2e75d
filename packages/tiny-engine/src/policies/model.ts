import { randomInt } from 'node:crypto'
import type { BackendKind } from '../inference/backend.ts'
import type { OutputWeights } from '../inference/output-weights.ts'
import { createInferencePool } from '../inference/pool.ts'
import type { PoolOptions, ScoreOptions } from '../inference/pool.ts'
import type { Scores } from '../inference/protocol.ts'
import type { Policy } from './policy.ts'

export interface ModelPolicyOptions extends PoolOptions {
  /** Name in `/v1/models`. */
  name?: string
  /** Seeds of requests without a seed. */
  drawSeed?: () => number
}

/** The embedded chat model as a policy. */
export interface ModelPolicy extends Policy {
  readonly backend: BackendKind | undefined
  readonly vocabularySize: number
  readonly hiddenSize: number
  /** Prompt and answer together. */
  readonly maxLength: number
  readonly eosId: number
  /** Returns the number of tasks of each ready worker thread. */
  readonly loads: readonly number[]
  /** Sets the trainable part of the weights. When it resolves, all further tokens use it. */
  setOutputWeights(weights: OutputWeights): Promise<void>
  /** Reads `ids` after the prompt; see `InferencePool.score`. */
  score(promptIds: Int32Array, ids: Int32Array, options?: ScoreOptions): Promise<Scores>
}

export async function createModelPolicy(options: ModelPolicyOptions = {}): Promise<ModelPolicy> {
  const { name = 'minimind2-small', drawSeed = () => randomInt(2 ** 47), ...poolOptions } = options
  const pool = await createInferencePool(poolOptions)
  return {
    name,
    backend: pool.backend,
    vocabularySize: pool.shape.vocabularySize,
    hiddenSize: pool.shape.hiddenSize,
    maxLength: pool.shape.maxLength,
    eosId: pool.shape.eosId,
    get loads() {
      return pool.loads
    },
    async start({ promptIds, sampling, signal }) {
      return pool.open({ promptIds, sampling, signal, seed: sampling.seed ?? drawSeed() })
    },
    setOutputWeights: (weights) => pool.setOutputWeights(weights),
    score: (promptIds, ids, scoreOptions) => pool.score(promptIds, ids, scoreOptions),
    [Symbol.asyncDispose]: () => pool[Symbol.asyncDispose](),
  }
}
