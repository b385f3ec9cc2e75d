import type { FinishReason } from './choice.ts'

export type PauseMode = 'abort' | 'wait' | 'keep'

/** A request that is being generated. */
export interface Running {
  /** As the client knows it, `chatcmpl-…`. */
  id: string
  /** Ends it early; its answer is completed with finish reason `abort`. */
  abort(): void
  /** How many of its choices wait for a token of the policy right now. */
  sampling: number
}

/**
 * What the control endpoints act on: who is running, whether anyone may, and which weights they run with. Pausing holds
 * new requests back; what becomes of running ones is the mode's business.
 */
export class Control {
  weightVersion: string
  readonly #running = new Set<Running>()
  /** `over` resolves when it ends or another takes its place. */
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

  /** A number no other request of this engine has; ids that clients choose may repeat. */
  nextSerial(): number {
    return ++this.#serial
  }

  /** Waits for the end of the pause, after which another may have begun. Rejects with the signal's reason. */
  async waitForResume(signal: AbortSignal): Promise<void> {
    this.waiting += 1
    try {
      await orAborted(this.#pause?.over.promise ?? Promise.resolve(), signal)
    } finally {
      this.waiting -= 1
    }
  }

  /** Counts a request in; call what is returned when it has ended. */
  add(running: Running): () => void {
    this.#running.add(running)
    return () => {
      this.#running.delete(running)
      this.notify()
    }
  }

  /** Whether running requests must stand still before their next token. */
  get isFrozen(): boolean {
    return this.#pause?.mode === 'keep'
  }

  /** Stands still until the pause ends or the request does. */
  async park(signal: AbortSignal): Promise<void> {
    while (this.#pause?.mode === 'keep' && !signal.aborted) {
      await orAborted(this.#pause.over.promise, signal).catch(() => {})
    }
  }

  /** Resolves when no request samples any more, or when something else was said in the meantime. */
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

  /** Ends the requests of these ids, or all. Gives how many. */
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

  /** A running request has come to a halt or gone. */
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
