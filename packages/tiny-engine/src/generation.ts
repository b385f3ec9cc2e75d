import { Choice, type TokenTexts } from './choice.ts'
import type { Control, EngineMetrics, Running } from './control.ts'
import type { GenerationLog, GenerationRecord } from './generation-log.ts'
import type { Conversation, Fault, Generation, Policy, SampledToken, SamplingParams } from './policies/policy.ts'

/** Maximum tokens that a policy without delays samples before others run. */
const TOKENS_PER_TURN = 1024

/** One prompt and its `n` continuations. */
export interface Job {
  /** Request id of the client. */
  requestId: string
  endpoint: string
  promptIds: Int32Array
  conversation?: Conversation
  sampling: SamplingParams
  includeStop: boolean
  skipSpecialTokens: boolean
}

/** Receives sampled tokens of all choices in any interleaving. */
export interface Sink {
  /** `text` is the released text; `choice.finish` is set with the last token. */
  token(choice: Choice, token: SampledToken, text: string): void
  /** Called if the choice ended without a further token. */
  end(choice: Choice, text: string): void
  /** Returns a promise to await before further sampling; undefined if none is needed. */
  ready?(): Promise<void> | undefined
  /** Injects a fault that is due. Returns true if the answer must end. */
  fault?(fault: Fault, signal: AbortSignal): Promise<boolean>
}

export interface GenerationDeps {
  policy: Policy
  texts: TokenTexts
  control: Control
  metrics: EngineMetrics
  log: GenerationLog | undefined
  modelName: string
  maxModelLen: number
  now(): number
}

/** A running job, from the policy's first token to its log record. Callers must `run` or `close` it. */
export class ActiveGeneration {
  readonly job: Job
  readonly fault: Fault | undefined
  readonly choices: readonly Choice[]
  readonly #deps: GenerationDeps
  readonly #generation: Generation
  readonly #running: Running
  readonly #controller: AbortController
  readonly #release: () => void
  readonly #startedAt: number
  readonly #startVersion: string
  readonly #weightChanges: NonNullable<GenerationRecord['weight_changes']> = []
  #sampled = 0
  /** Whether a fault waits for its number of tokens. */
  #faultDue: boolean
  #closed = false

  private constructor(deps: GenerationDeps, job: Job, parts: Started) {
    this.job = job
    this.#deps = deps
    this.#generation = parts.generation
    this.#running = parts.running
    this.#controller = parts.controller
    this.#release = parts.release
    this.#startedAt = parts.startedAt
    this.#startVersion = parts.startVersion
    this.fault = parts.generation.fault
    this.#faultDue = isLater(this.fault)
    const { sampling, includeStop, skipSpecialTokens } = job
    const maxLength = deps.maxModelLen - job.promptIds.length
    this.choices = Array.from(
      { length: sampling.n },
      (_, index) => new Choice(index, deps.texts, { sampling, maxLength, includeStop, skipSpecialTokens }),
    )
  }

  /** Waits for the end of a pause, then starts the policy. `client` aborts when the client disconnects. */
  static async start(deps: GenerationDeps, job: Job, client: AbortSignal): Promise<ActiveGeneration> {
    while (deps.control.isPaused) await deps.control.waitForResume(client)
    client.throwIfAborted()
    const controller = new AbortController()
    const onClientGone = () => controller.abort()
    client.addEventListener('abort', onClientGone, { once: true })
    const running: Running = { id: job.requestId, sampling: 0, abort: () => controller.abort() }
    const leave = deps.control.add(running)
    const release = () => {
      client.removeEventListener('abort', onClientGone)
      leave()
    }
    const startedAt = deps.now()
    const startVersion = deps.control.weightVersion
    try {
      const { promptIds, conversation, sampling } = job
      const request = {
        id: `${job.requestId}/${deps.control.nextSerial()}`,
        promptIds,
        sampling,
        signal: controller.signal,
      }
      const generation = await deps.policy.start(conversation === undefined ? request : { ...request, conversation })
      deps.metrics.promptTokens += promptIds.length
      return new ActiveGeneration(deps, job, { generation, running, controller, release, startedAt, startVersion })
    } catch (error) {
      release()
      deps.metrics.countFinished('error')
      throw error
    }
  }

  /** Cached prompt tokens; undefined without a cache. */
  get cachedTokens(): number | undefined {
    return this.#generation.cachedTokens
  }

  get isAborted(): boolean {
    return this.#controller.signal.aborted
  }

  /** Aborts when the client disconnects or the request is aborted. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Samples every choice to its end. Returns false if a fault truncated the answer. */
  async run(sink: Sink): Promise<boolean> {
    const runs = this.choices.map((choice) =>
      this.#runChoice(choice, sink).catch((error: unknown) => {
        this.#controller.abort()
        throw error
      }),
    )
    try {
      const results = await Promise.allSettled(runs)
      const failed = results.find((result) => result.status === 'rejected')
      if (failed) throw failed.reason
      if (await this.#doFault(sink)) return false
      return results.every((result) => result.status === 'fulfilled' && result.value)
    } finally {
      this.close()
    }
  }

  /** Unregisters the job and writes the log. May be called twice. */
  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#release()
    for (const { finish } of this.choices) this.#deps.metrics.countFinished(finish?.reason ?? 'abort')
    this.#deps.log?.write(this.#toRecord())
  }

  async #runChoice(choice: Choice, sink: Sink): Promise<boolean> {
    const { signal } = this
    const { control, metrics } = this.#deps
    const running = this.#running
    let version = this.#startVersion
    const tokens = this.#generation.sample(choice.index)[Symbol.asyncIterator]()
    try {
      while (!signal.aborted) {
        if (this.#faultDue && (await this.#doFault(sink))) return false
        if (control.isFrozen) await control.park(signal)
        if (control.weightVersion !== version) {
          version = control.weightVersion
          this.#weightChanges.push({ choice: choice.index, from_token: choice.ids.length, weight_version: version })
        }
        let next: IteratorResult<SampledToken, unknown>
        running.sampling += 1
        try {
          next = await tokens.next()
        } finally {
          running.sampling -= 1
          control.notify()
        }
        if (next.done === true || signal.aborted) break
        const text = choice.push(next.value)
        this.#sampled += 1
        metrics.generationTokens += 1
        sink.token(choice, next.value, text)
        if (choice.finish !== undefined) return true
        const ready = sink.ready?.()
        if (ready !== undefined) await ready
        else if (this.#sampled % TOKENS_PER_TURN === 0) await new Promise((resolve) => setImmediate(resolve))
      }
    } catch (error) {
      // A policy may react to an abort with an error or not at all.
      if (!signal.aborted) throw error
    } finally {
      await tokens.return?.()
    }
    sink.end(choice, choice.end(signal.aborted ? 'abort' : undefined))
    return true
  }

  async #doFault(sink: Sink): Promise<boolean> {
    if (!this.#faultDue || !isLater(this.fault) || this.#sampled < this.fault.afterTokens) return false
    this.#faultDue = false
    const isEnd = (await sink.fault?.(this.fault, this.signal)) ?? false
    if (isEnd) this.#controller.abort()
    return isEnd
  }

  #toRecord(): GenerationRecord {
    return {
      request_id: this.job.requestId,
      endpoint: this.job.endpoint,
      model: this.#deps.modelName,
      prompt_token_ids: [...this.job.promptIds],
      choices: this.choices.map(({ index, ids, logprobs, text, finish }) => ({
        index,
        token_ids: ids,
        logprobs,
        text,
        finish_reason: finish?.reason ?? null,
      })),
      weight_version: this.#startVersion,
      ...(this.#weightChanges.length === 0 ? {} : { weight_changes: this.#weightChanges }),
      started_at: new Date(this.#startedAt).toISOString(),
      ended_at: new Date(this.#deps.now()).toISOString(),
      aborted: this.isAborted,
    }
  }
}

interface Started {
  generation: Generation
  running: Running
  controller: AbortController
  release: () => void
  startedAt: number
  startVersion: string
}

type LaterFault = Extract<Fault, { afterTokens?: number }> & { afterTokens: number }

/** Whether a fault waits for tokens, so that it applies only to streams. */
export function isLater(fault: Fault | undefined): fault is LaterFault {
  return fault !== undefined && 'afterTokens' in fault && fault.afterTokens !== undefined
}
