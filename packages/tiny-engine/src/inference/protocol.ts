import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import type { BackendChoice, BackendKind } from './backend.ts'
import type { OutputWeights } from './output-weights.ts'

/** Settings of a worker thread. */
export interface WorkerSettings {
  modelFolder: string
  backend: BackendChoice
  /** Maximum number of concurrent sequences; further sequences wait. */
  maxActive: number
  prefixCacheBytes: number
  outputWeights: OutputWeights
}

/** Data of the thread: its settings, and the gate by which its owner keeps it out of native code. */
export interface WorkerData extends WorkerSettings {
  gate: SharedArrayBuffer
}

/** One choice of a request. Choices with the same `request` read the prompt once. */
export interface SequenceRequest {
  request: number
  promptIds: Int32Array
  sampling: SamplingParams
  seed: number
  /** Number of tokens that may be sampled before more are granted. */
  credit: number
}

export interface ScoreRequest {
  promptIds: Int32Array
  ids: Int32Array
  /** Tokens read at a time. */
  stepTokens: number
  /** Whether the result has logits and hidden states: 28 KB for each token. */
  withPredictions: boolean
}

/** Result of reading given tokens after a prompt: for each token, what the model predicted before it. */
export interface Scores {
  /** Raw log probability of each token under the current output weights. */
  logprobs: Float32Array
  /** Logits of the frozen model, without output weights: [token, vocabulary size]. Empty unless requested. */
  logits: Float32Array
  /** Final hidden states: [token, hidden size]. Empty unless requested. */
  hidden: Float32Array
}

/** `task` is a number that is unique in the pool. */
export type ToWorker =
  | { type: 'sample'; task: number; request: SequenceRequest }
  | { type: 'grant'; task: number; tokens: number }
  | { type: 'score'; task: number; request: ScoreRequest }
  | { type: 'cancel'; task: number }
  | { type: 'set-output-weights'; task: number; weights: OutputWeights }
  | { type: 'close' }

export type TaskEvent =
  | { type: 'token'; task: number; token: SampledToken; cachedTokens: number; isLast: boolean }
  | { type: 'scored'; task: number; scores: Scores }
  | { type: 'output-weights-set'; task: number }
  | { type: 'failed'; task: number; message: string }

export type FromWorker =
  | { type: 'ready'; backend: BackendKind }
  /** The model could not be loaded; the worker ends. */
  | { type: 'not-ready'; message: string }
  | TaskEvent
