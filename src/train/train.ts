import { setImmediate } from 'node:timers/promises'
import type { AdvantageMethod } from '../trajectory/score-session.ts'
import { Adam, type AdamOptions } from './adam.ts'
import { grpoObjective, type GrpoStats } from './grpo.ts'
import type { LowRank } from './low-rank.ts'
import { readBatch, type ReadTokens } from './read-batch.ts'
import type { TrainSession } from './train-session.ts'

export interface TrainOptions {
  steps: number
  /** Updates on each batch. */
  epochs: number
  /** Clip range of the importance ratio. */
  clip: number
  advantages: AdvantageMethod
  adam: AdamOptions
  /**
   * How many versions older than the trained weights sampled tokens may be. 0: synchronous; sampling waits for every update.
   * Larger values let the batches of the next steps be sampled during an update.
   */
  maxLag: number
  /** Largest permitted difference between a captured and a recomputed log probability. */
  tolerance: number
}

export interface TrainDeps {
  /** Samples and grades the sessions of a step. `version` is current when sampling starts. Order matters for the result. */
  sample(step: number, version: number): Promise<readonly TrainSession[]>
  read: ReadTokens
  /** Puts weights into the engine under a version. All tokens that are sampled later have this version. */
  load(version: number, weights: LowRank): Promise<void>
  /** Milliseconds, any origin. */
  now(): number
  onStep?(step: StepReport): void
  /** When it aborts, training ends with its reason. */
  signal?: AbortSignal
}

export interface StepReport extends GrpoStats {
  step: number
  /** Mean reward of all graded sessions. */
  meanReward: number
  sessions: number
  /** Sampled tokens of sessions with an advantage. */
  trainedTokens: number
  /** Largest difference between a captured and a recomputed log probability. */
  maxLogprobError: number
  /** Versions between the weights that sampled a token and the weights that were updated. */
  meanLag: number
  maxLag: number
  seconds: number
}

/** Version of the initial weights. Step n updates version n if sampling is synchronous. */
export const FIRST_VERSION = 1

/** Trains `weights` by GRPO and returns the trained weights. */
export async function train(weights: LowRank, options: TrainOptions, deps: TrainDeps): Promise<LowRank> {
  const adam = new Adam(options.adam)
  const versions = new Map<number, LowRank>()
  const batches: Promise<readonly TrainSession[]>[] = []
  let [version, sampled, current] = [FIRST_VERSION, 0, weights]

  const load = async (next: LowRank): Promise<void> => {
    versions.set(version, next)
    versions.delete(version - options.maxLag - 1)
    await deps.load(version, next)
  }
  const startSampling = (): void => {
    const batch = deps.sample((sampled += 1), version)
    // Reported where the batch is awaited, which may be later.
    batch.catch(() => undefined)
    batches.push(batch)
  }

  await load(current)
  for (let step = 1; step <= options.steps; step++) {
    deps.signal?.throwIfAborted()
    const startedAt = deps.now()
    while (sampled < Math.min(options.steps, step + options.maxLag)) startSampling()
    const sessions = await batches.shift()!
    const batch = await readBatch(sessions, { ...options, weightsOf: (of) => versions.get(of), read: deps.read })
    let stats: GrpoStats | undefined
    for (let epoch = 0; epoch < options.epochs; epoch++) {
      const { gradient, stats: before } = grpoObjective(current, batch.tokens, options.clip)
      stats = before
      current = adam.step(current, gradient)
      // Requests of sessions that run during the update are served in between.
      await setImmediate()
    }
    const lags = listLags(sessions, version)
    version += 1
    await load(current)
    deps.onStep?.({
      ...stats!,
      step,
      meanReward: mean(sessions.map(({ reward }) => reward)),
      sessions: sessions.length,
      trainedTokens: batch.tokens.length,
      maxLogprobError: batch.maxLogprobError,
      meanLag: mean(lags),
      maxLag: lags.reduce((most, lag) => Math.max(most, lag), 0),
      seconds: (deps.now() - startedAt) / 1000,
    })
  }
  return current
}

function listLags(sessions: readonly TrainSession[], version: number): number[] {
  return sessions.flatMap(({ calls }) => calls.flatMap(({ versions }) => Array.from(versions, (of) => version - of)))
}

export function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length
}
