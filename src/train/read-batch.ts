import { advantagesOf, type AdvantageMethod } from '../trajectory/score-session.ts'
import type { TrainToken } from './grpo.ts'
import { forward, type LowRank } from './low-rank.ts'
import { TrainDataError, type TrainCall, type TrainSession } from './train-session.ts'

/** Teacher forcing: what the frozen model predicts before each of `ids` after the prompt, row after row. */
export type ReadTokens = (
  promptIds: Int32Array,
  ids: Int32Array,
) => Promise<{ logits: Float32Array; hidden: Float32Array }>

export interface ReadBatchOptions {
  advantages: AdvantageMethod
  /** Weights of a version; undefined if the trainer no longer has them. */
  weightsOf: (version: number) => LowRank | undefined
  read: ReadTokens
  /** Largest permitted difference between a captured and a recomputed log probability. */
  tolerance: number
}

export interface Batch {
  tokens: TrainToken[]
  /** Largest difference between a captured and a recomputed log probability. */
  maxLogprobError: number
}

/**
 * Computes advantages, and recomputes the log probability of every token to train with the weights that sampled it. Throws
 * TrainDataError if one differs from the captured value: then ids, masks, log probabilities or versions do not belong
 * together, and a step on them would not follow the gradient of the reward. Groups with equal rewards have no gradient and
 * are omitted.
 */
export async function readBatch(sessions: readonly TrainSession[], options: ReadBatchOptions): Promise<Batch> {
  const scores = sessions.map(({ id, group, reward }) => ({
    session_id: id,
    group_id: group,
    outcome_reward: reward,
    metadata: {},
  }))
  const advantages = advantagesOf(scores, options.advantages)
  const trained = sessions.flatMap(({ id, calls }) => {
    const advantage = advantages.get(id) ?? 0
    return Math.abs(advantage) < 1e-9 ? [] : calls.map((call) => ({ id, call, advantage }))
  })
  const read = await Promise.all(
    trained.map(async ({ id, call, advantage }) => {
      const tokens = await readCall(call, advantage, options.read)
      return { tokens, error: checkCaptured(id, call, tokens, options) }
    }),
  )
  return {
    tokens: read.flatMap(({ tokens }) => tokens),
    maxLogprobError: Math.max(0, ...read.map(({ error }) => error)),
  }
}

async function readCall(call: TrainCall, advantage: number, read: ReadTokens): Promise<TrainToken[]> {
  const { logits, hidden } = await read(call.promptIds, call.ids)
  const [vocabularySize, hiddenSize] = [logits.length / call.ids.length, hidden.length / call.ids.length]
  return Array.from(call.ids, (id, i) => ({
    id,
    advantage,
    logprob: call.logprobs[i]!,
    logits: logits.subarray(i * vocabularySize, (i + 1) * vocabularySize),
    hidden: hidden.subarray(i * hiddenSize, (i + 1) * hiddenSize),
  }))
}

function checkCaptured(
  sessionId: string,
  { versions }: TrainCall,
  tokens: readonly TrainToken[],
  { weightsOf, tolerance }: ReadBatchOptions,
): number {
  let largest = 0
  for (const [i, token] of tokens.entries()) {
    const version = versions[i]!
    const weights = weightsOf(version)
    if (weights === undefined) {
      throw new TrainDataError(`Session ${sessionId} has tokens of version ${version}, whose weights are not kept.`)
    }
    const { logprob } = forward(weights, token, token.id)
    const error = Math.abs(logprob - token.logprob)
    // Negated, so that NaN is an error too.
    if (!(error <= tolerance)) {
      throw new TrainDataError(
        `Session ${sessionId}, token ${i} (id ${token.id}) of version ${version}: the captured log probability is ` +
          `${token.logprob.toFixed(4)}, but these weights give ${logprob.toFixed(4)}. Nothing was trained.`,
      )
    }
    largest = Math.max(largest, error)
  }
  return largest
}
