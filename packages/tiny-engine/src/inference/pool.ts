import { availableParallelism } from 'node:os'
import { extname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { embeddedModelFolder, loadModelShape } from '../model-package.ts'
import type { ModelShape } from '../model-package.ts'
import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import type { BackendChoice, BackendKind } from './backend.ts'
import { findWeightsProblem } from './output-weights.ts'
import type { OutputWeights } from './output-weights.ts'
import { PoolWorker, WorkerLostError } from './pool-worker.ts'
import type { TaskListener } from './pool-worker.ts'
import { PrefixRouter } from './prefix-router.ts'
import type { ScoreRequest, Scores, WorkerData, WorkerSettings } from './protocol.ts'
import { TokenChannel } from './token-channel.ts'

export interface PoolOptions {
  /** A folder with `config.json` and `onnx/model_quantized.onnx`; default: the embedded model. */
  modelFolder?: string
  backend?: BackendChoice
  /** Number of workers with one thread each; default: the number of cores, at most 4. */
  workers?: number
  /** Maximum number of concurrent sequences per worker; further sequences wait. */
  maxActive?: number
  /** Cache size for prompts of each worker; a token needs 8 KB. */
  prefixCacheBytes?: number
  startThread?: (data: WorkerData) => Worker
}

/** The prompt is invalid for the model. Status 400. */
export class PromptError extends Error {
  override readonly name = 'PromptError'
}

export interface PoolRequest {
  promptIds: Int32Array
  sampling: SamplingParams
  /** Seed of the first choice; choice i has seed + i. */
  seed: number
  signal: AbortSignal
}

export interface PoolGeneration {
  /** Cached prompt tokens; 0 until the first token. */
  readonly cachedTokens: number
  /**
   * Starts when it is iterated, and again for each iteration. Ends at the end of turn, a stop id, `maxTokens` or the end of
   * the context. Throws the signal's reason when the signal fires, and WorkerLostError when the thread dies.
   */
  sample: (choice: number) => AsyncIterable<SampledToken>
}

/** Maximum lead of a worker over its reader, and the number of tokens between acknowledgements. */
const CREDIT_TOKENS = 32
const GRANT_TOKENS = 16

export async function createInferencePool(options: PoolOptions = {}): Promise<InferencePool> {
  const modelFolder = options.modelFolder ?? embeddedModelFolder()
  const pool = new InferencePool(await loadModelShape(modelFolder), {
    startThread: options.startThread ?? startInferenceThread,
    workers: options.workers ?? Math.min(4, availableParallelism()),
    settings: {
      modelFolder,
      backend: options.backend ?? 'auto',
      maxActive: options.maxActive ?? 16,
      prefixCacheBytes: options.prefixCacheBytes ?? 256 * 2 ** 20,
    },
  })
  try {
    await pool.start()
    return pool
  } catch (error) {
    await pool[Symbol.asyncDispose]()
    throw error
  }
}

interface InferencePoolDeps {
  startThread: (data: WorkerData) => Worker
  workers: number
  settings: Omit<WorkerSettings, 'outputWeights'>
}

export type ScoreOptions = Partial<Pick<ScoreRequest, 'stepTokens' | 'withPredictions'>>

/** One model in several threads. Its answers depend only on the request, not on the thread or on other requests. */
export class InferencePool implements AsyncDisposable {
  readonly shape: ModelShape
  readonly #deps: InferencePoolDeps
  readonly #workers: PoolWorker[] = []
  readonly #router = new PrefixRouter<PoolWorker>()
  #outputWeights: OutputWeights = {}
  #backend: BackendKind | undefined
  #isClosed = false
  #lastNumber = 0

  constructor(shape: ModelShape, deps: InferencePoolDeps) {
    this.shape = shape
    this.#deps = deps
  }

  async start(): Promise<void> {
    process.on('exit', this.#halt)
    for (let i = 0; i < this.#deps.workers; i++) this.#addWorker()
    const [backend] = await Promise.all(this.#workers.map((worker) => worker.ready))
    this.#backend = backend
  }

  get backend(): BackendKind | undefined {
    return this.#backend
  }

  /** Returns the number of tasks of each ready thread. */
  get loads(): readonly number[] {
    return this.#workers.map((worker) => worker.load)
  }

  /** Throws PromptError. Work begins when a choice is read. */
  open(request: PoolRequest): PoolGeneration {
    this.#assertFits(request.promptIds, 1)
    const number = ++this.#lastNumber
    // Shared by all choices: concurrent choices read the prompt once.
    const home: Home = { worker: undefined, cachedTokens: 0 }
    return {
      get cachedTokens() {
        return home.cachedTokens
      },
      sample: (choice) => ({ [Symbol.asyncIterator]: () => this.#iterate(request, number, choice, home) }),
    }
  }

  /**
   * Teacher forcing: reads `ids` after the prompt. The log probabilities are identical to those of the sampler, because the
   * tokens are read one at a time. More `stepTokens` are several times faster, but differ by 0.03 to 0.3 per token on average: tokens that
   * are read together are quantised together.
   */
  async score(promptIds: Int32Array, ids: Int32Array, options: ScoreOptions = {}): Promise<Scores> {
    this.#assertFits(promptIds, ids.length)
    this.#assertKnown(ids)
    if (ids.length === 0)
      return { logprobs: new Float32Array(), logits: new Float32Array(), hidden: new Float32Array() }
    const worker = this.#chooseWorker(promptIds)
    const { promise, resolve, reject } = Promise.withResolvers<Scores>()
    const { stepTokens = 1, withPredictions = false } = options
    const request = { promptIds, ids, stepTokens, withPredictions }
    worker.begin(
      { type: 'score', task: ++this.#lastNumber, request },
      {
        event(event) {
          if (event.type === 'scored') resolve(event.scores)
          if (event.type === 'failed') reject(new Error(event.message))
        },
        lost: reject,
      },
    )
    return promise
  }

  /** Replaces the output weights. When it resolves, all further tokens use them. Throws RangeError for weights of another size. */
  async setOutputWeights(weights: OutputWeights): Promise<void> {
    const problem = findWeightsProblem(weights, this.shape)
    if (problem !== undefined) throw new RangeError(problem)
    const copy = structuredClone(weights)
    this.#outputWeights = copy
    await Promise.all(
      this.#workers.map((worker) => {
        const { promise, resolve } = Promise.withResolvers<void>()
        // A dead worker uses no weights any more, and its replacement starts with these.
        const message = { type: 'set-output-weights', task: ++this.#lastNumber, weights: copy } as const
        worker.begin(message, { event: () => resolve(), lost: () => resolve() })
        return promise
      }),
    )
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true
    await Promise.all(this.#workers.map((worker) => worker.close()))
    process.off('exit', this.#halt)
  }

  readonly #halt = () => {
    for (const worker of this.#workers) worker.halt()
  }

  #addWorker(): void {
    const { startThread, settings } = this.#deps
    const onLost = (worker: PoolWorker) => this.#replace(worker)
    this.#workers.push(
      new PoolWorker({ startThread, settings: { ...settings, outputWeights: this.#outputWeights }, onLost }),
    )
  }

  #replace(worker: PoolWorker): void {
    this.#router.forget(worker)
    this.#workers.splice(this.#workers.indexOf(worker), 1)
    // A worker that was never ready would fail again and again.
    if (worker.wasReady && !this.#isClosed) this.#addWorker()
  }

  #chooseWorker(promptIds: Int32Array): PoolWorker {
    const worker = this.#isClosed ? undefined : this.#router.choose(promptIds, this.#workers)
    if (worker !== undefined) return worker
    throw new WorkerLostError(this.#isClosed ? 'The inference workers were shut down.' : 'No inference worker is left.')
  }

  #iterate(request: PoolRequest, number: number, choice: number, home: Home): AsyncIterator<SampledToken, undefined> {
    const { promptIds, sampling, signal } = request
    const task = ++this.#lastNumber
    const channel = new TokenChannel()
    let worker: PoolWorker | undefined
    let ungranted = 0
    let isLeft = false

    const abort = () => {
      worker?.cancel(task)
      channel.fail(signal.reason)
    }
    const finish = () => signal.removeEventListener('abort', abort)
    const listener: TaskListener = {
      event(event) {
        if (event.type === 'token') {
          home.cachedTokens = event.cachedTokens
          channel.push(event.token)
          if (!event.isLast) return
          channel.end()
        }
        if (event.type === 'failed') channel.fail(new Error(event.message))
        finish()
      },
      lost(error) {
        channel.fail(error)
        finish()
      },
    }
    const begin = (): PoolWorker => {
      signal.throwIfAborted()
      if (home.worker === undefined || home.worker.isLost) home.worker = this.#chooseWorker(promptIds)
      const seed = request.seed + choice
      const sequence = { request: number, promptIds, sampling, seed, credit: CREDIT_TOKENS }
      home.worker.begin({ type: 'sample', task, request: sequence }, listener)
      signal.addEventListener('abort', abort, { once: true })
      return home.worker
    }
    return {
      async next() {
        if (isLeft) return { done: true, value: undefined }
        worker ??= begin()
        const token = await channel.take()
        if (token === undefined) return { done: true, value: undefined }
        ungranted = (ungranted + 1) % GRANT_TOKENS
        if (ungranted === 0) worker.grant(task, GRANT_TOKENS)
        return { done: false, value: token }
      },
      async return() {
        isLeft = true
        worker?.cancel(task)
        channel.close()
        finish()
        return { done: true, value: undefined }
      },
    }
  }

  #assertFits(promptIds: Int32Array, further: number): void {
    if (promptIds.length === 0) throw new PromptError('The prompt has no tokens.')
    if (promptIds.length + further > this.shape.maxLength) {
      throw new PromptError(
        `The prompt has ${promptIds.length} tokens and ${further} more are requested; the limit of the model is ${this.shape.maxLength}.`,
      )
    }
    this.#assertKnown(promptIds)
  }

  #assertKnown(ids: Int32Array): void {
    const unknown = ids.find((id) => id < 0 || id >= this.shape.vocabularySize)
    if (unknown !== undefined) throw new PromptError(`Token id ${unknown} is not in the model's vocabulary.`)
  }
}

/** The worker of a request's choices, and its result for the prompt. */
interface Home {
  worker: PoolWorker | undefined
  cachedTokens: number
}

export function startInferenceThread(data: WorkerData): Worker {
  // The extension of this file: `.ts` from source, `.js` after the build.
  const entry = new URL(`./worker${extname(import.meta.url)}`, import.meta.url)
  // Without the flags of this process: threads reject some of them, such as --eval.
  return new Worker(entry, { workerData: data, name: 'inference', execArgv: [] })
}
