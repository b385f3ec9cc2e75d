import type { FinishReason } from './choice.ts'

export type PauseMode = 'abort' | 'wait' | 'keep'

/** A request that is being generated. */
export interface Running {
  /** As the client knows it, `chatcmpl-…`. */
  id: string
  /** Ends the request early; its answer gets the finish reason `abort`. */
  abort(): void
  /** Number of its choices that wait for a token of the policy. */
  sampling: number
}

/**
 * State of the control endpoints: running requests, pause and weight version. A pause holds new requests back; its mode
 * decides what happens to running requests.
 */
export class Control {
  weightVersion: string
  readonly #running = new Set<Running>()
  /** `over` resolves when the pause ends or another replaces it. */
  #pause: { mode: PauseMode; over: PromiseWithResolvers<void> } | undefined
  #watchers = new Set<() => void>()
  /** Requests held back by a pause. */
  waiting = 0
  #serial = 0

  constructor(weightVersion: string) {
    this.weightVersion = weightVersion
  }

  get isPaused(): boolean {
    return this.#pause !== undefined
  }

  get runningCount(): number {
    return this.#running.size
  }

  /** Returns a number that is unique in this engine; ids of clients may repeat. */
  nextSerial(): number {
    return ++this.#serial
  }

  /** Waits for the end of the pause. Another pause may have begun by then. Rejects with the signal's reason. */
  async waitForResume(signal: AbortSignal): Promise<void> {
    this.waiting += 1
    try {
      await orAborted(this.#pause?.over.promise ?? Promise.resolve(), signal)
    } finally {
      this.waiting -= 1
    }
  }

  /** Registers a request. The caller must call the returned function when the request has ended. */
  add(running: Running): () => void {
    this.#running.add(running)
    return () => {
      this.#running.delete(running)
      this.notify()
    }
  }

  /** Whether running requests must wait before their next token. */
  get isFrozen(): boolean {
    return this.#pause?.mode === 'keep'
  }

  /** Waits until the pause or the request ends. */
  async park(signal: AbortSignal): Promise<void> {
    while (this.#pause?.mode === 'keep' && !signal.aborted) {
      await orAborted(this.#pause.over.promise, signal).catch(() => {})
    }
  }

  /** Resolves when no request samples any more, or when the pause is replaced. */
  async pause(mode: PauseMode): Promise<void> {
    this.#pause?.over.resolve()
    this.notify()
    this.#pause = { mode, over: Promise.withResolvers<void>() }
    if (mode === 'abort') this.abort()
    const pause = this.#pause
    const isSettled = () => [...this.#running].every(({ sampling }) => mode === 'keep' && sampling === 0)
    while (this.#pause === pause && !isSettled()) await this.#nextChange()
  }

  resume(): void {
    this.#pause?.over.resolve()
    this.#pause = undefined
    this.notify()
  }

  /** Aborts the requests with these ids, or all. Returns their number. */
  abort(ids?: readonly string[]): number {
    const chosen = [...this.#running].filter(({ id }) => ids === undefined || ids.includes(id))
    for (const running of chosen) running.abort()
    return chosen.length
  }

  #nextChange(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#watchers.add(resolve)
    return promise
  }

  /** Called when a running request has paused or ended. */
  notify(): void {
    if (this.#watchers.size === 0) return
    const watchers = this.#watchers
    this.#watchers = new Set()
    for (const notify of watchers) notify()
  }
}

function orAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.reject(signal.reason as Error)
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(signal.reason as Error)
    signal.addEventListener('abort', onAbort, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort))
  })
}

/** Counters for `/metrics`, under vLLM's names. */
export class EngineMetrics {
  promptTokens = 0
  generationTokens = 0
  readonly finished = new Map<FinishReason | 'error', number>()

  countFinished(reason: FinishReason | 'error'): void {
    this.finished.set(reason, (this.finished.get(reason) ?? 0) + 1)
  }

  print(model: string, control: Control): string {
    const label = `model_name=${JSON.stringify(model)}`
    const lines = [
      '# TYPE vllm:num_requests_running gauge',
      `vllm:num_requests_running{${label}} ${control.runningCount}`,
      '# TYPE vllm:num_requests_waiting gauge',
      `vllm:num_requests_waiting{${label}} ${control.waiting}`,
      '# TYPE vllm:prompt_tokens_total counter',
      `vllm:prompt_tokens_total{${label}} ${this.promptTokens}`,
      '# TYPE vllm:generation_tokens_total counter',
      `vllm:generation_tokens_total{${label}} ${this.generationTokens}`,
      '# TYPE vllm:request_success_total counter',
      ...[...this.finished].map(
        ([reason, count]) => `vllm:request_success_total{finished_reason="${reason}",${label}} ${count}`,
      ),
    ]
    return `${lines.join('\n')}\n`
  }
}
