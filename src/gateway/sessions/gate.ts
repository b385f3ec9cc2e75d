import { RolloutError } from '../../model/failure.ts'

/**
 * Delays model calls while the engine's weights are changed. A delayed call does not fail: its harness receives keep-alive
 * frames, as during a slow answer.
 */
export class Gate {
  #isPaused = false
  #inFlight = 0
  #opened: PromiseWithResolvers<void> = Promise.withResolvers()
  #drained: PromiseWithResolvers<void> | undefined

  get isPaused(): boolean {
    return this.#isPaused
  }

  /** Calls that were sent to the engine and have not ended. */
  get inFlight(): number {
    return this.#inFlight
  }

  /** Runs `work` when the gate is open. Rejects when the signal is aborted before that. */
  async pass<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    while (this.#isPaused) await this.#waitUntilOpen(signal)
    this.#inFlight += 1
    try {
      return await work()
    } finally {
      this.#inFlight -= 1
      if (this.#inFlight === 0) this.#drained?.resolve()
    }
  }

  /** Delays new calls. Resolves with whether the calls in flight ended within the timeout. */
  async pause(drainTimeoutMs: number): Promise<boolean> {
    if (!this.#isPaused) this.#opened = Promise.withResolvers()
    this.#isPaused = true
    if (this.#inFlight === 0) return true
    this.#drained ??= Promise.withResolvers()
    const late = Promise.withResolvers<void>()
    const timer = setTimeout(late.resolve, drainTimeoutMs)
    await Promise.race([this.#drained.promise, late.promise])
    clearTimeout(timer)
    this.#drained = undefined
    return this.#inFlight === 0
  }

  resume(): void {
    if (!this.#isPaused) return
    this.#isPaused = false
    this.#opened.resolve()
  }

  async #waitUntilOpen(signal: AbortSignal): Promise<void> {
    const gone = Promise.withResolvers<never>()
    const leave = (): void => gone.reject(new RolloutError('request.client-gone', 'The harness closed the call.'))
    if (signal.aborted) leave()
    signal.addEventListener('abort', leave)
    try {
      await Promise.race([this.#opened.promise, gone.promise])
    } finally {
      signal.removeEventListener('abort', leave)
    }
  }
}
