import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import type { BackendChoice, BackendKind } from './backend.ts'

/** Settings of a worker thread. */
export interface WorkerSettings {
  modelFolder: string
  backend: BackendChoice
  /** Maximum number of concurrent sequences; further sequences wait. */
  maxActive: number
  prefixCacheBytes: number
  /** Absent: all zero. */
  outputBias?: Float32Array
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
}

/** `task` is a number that is unique in the pool. */
export type ToWorker =
  | { type: 'sample'; task: number; request: SequenceRequest }
  | { type: 'grant'; task: number; tokens: number }
  | { type: 'score'; task: number; request: ScoreRequest }
  | { type: 'cancel'; task: number }
  | { type: 'set-output-bias'; task: number; bias: Float32Array }
  | { type: 'close' }

export type TaskEvent =
  | { type: 'token'; task: number; token: SampledToken; cachedTokens: number; isLast: boolean }
  | { type: 'scored'; task: number; logprobs: Float32Array }
  | { type: 'output-bias-set'; task: number }
  | { type: 'failed'; task: number; message: string }

export type FromWorker =
  | { type: 'ready'; backend: BackendKind }
  /** The model could not be loaded; the worker ends. */
  | { type: 'not-ready'; message: string }
  | TaskEvent
