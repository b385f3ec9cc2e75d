import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import type { BackendChoice, BackendKind } from './backend.ts'

/** What a worker thread is started with. */
export interface WorkerSettings {
  modelFolder: string
  backend: BackendChoice
  /** Sequences that take turns; more wait. */
  maxActive: number
  prefixCacheBytes: number
  /** Absent: all zero. */
  outputBias?: Float32Array
}

/** What the thread itself gets: the settings, and its owner's way of keeping it out of native code. */
export interface WorkerData extends WorkerSettings {
  gate: SharedArrayBuffer
}

/** One choice of a request. Those with the same `request` share the reading of the prompt. */
export interface SequenceRequest {
  request: number
  promptIds: Int32Array
  sampling: SamplingParams
  seed: number
  /** How many tokens may be sampled before more are granted. */
  credit: number
}

export interface ScoreRequest {
  promptIds: Int32Array
  ids: Int32Array
  /** Tokens read at a time. */
  stepTokens: number
}

/** `task` numbers are given by the pool, unique within it. */
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
  /** The model did not load; the worker ends. */
  | { type: 'not-ready'; message: string }
  | TaskEvent
