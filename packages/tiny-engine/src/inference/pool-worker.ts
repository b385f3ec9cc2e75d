import type { Worker } from 'node:worker_threads'
import type { BackendKind } from './backend.ts'
import { NativeGate } from './native-gate.ts'
import type { FromWorker, TaskEvent, ToWorker, WorkerData, WorkerSettings } from './protocol.ts'

/** A worker could not start or has died. Its work is lost and may be requested again. */
export class WorkerLostError extends Error {
  override readonly name = 'WorkerLostError'
}

/** Listener of a task: receives every event, or the reason why no more follow. */
export interface TaskListener {
  event(event: TaskEvent): void
  lost(error: Error): void
}

export interface PoolWorkerDeps {
  startThread: (data: WorkerData) => Worker
  settings: WorkerSettings
  /** Called when the thread ends unexpectedly. */
  onLost: (worker: PoolWorker) => void
}

/** The pool's handle of one worker thread. */
export class PoolWorker {
  readonly #gate = new NativeGate()
  readonly #thread: Worker
  readonly #listeners = new Map<number, TaskListener>()
  readonly #ready = Promise.withResolvers<BackendKind>()
  readonly #exited = Promise.withResolvers<void>()
  #lost: WorkerLostError | undefined
  #isReady = false
  #reason = ''
  #isClosing = false

  constructor({ startThread, settings, onLost }: PoolWorkerDeps) {
    const thread = startThread({ ...settings, gate: this.#gate.buffer })
    this.#thread = thread
    // Callers that await it receive the rejection; a replacement may have no such caller.
    this.#ready.promise.catch(() => undefined)
    thread.on('message', (message: FromWorker) => this.#receive(message))
    thread.on('error', (error) => {
      this.#reason = error instanceof Error ? error.message : String(error)
    })
    thread.on('exit', (code) => {
      this.#end(`An inference worker stopped with exit code ${code}. ${this.#reason}`.trimEnd())
      this.#exited.resolve()
      if (!this.#isClosing) onLost(this)
    })
  }

  /** Resolves with the loaded backend; rejects if loading failed. */
  get ready(): Promise<BackendKind> {
    return this.#ready.promise
  }

  /** Whether it was ever ready. */
  get wasReady(): boolean {
    return this.#isReady
  }

  get isLost(): boolean {
    return this.#lost !== undefined
  }

  /** Number of its tasks. */
  get load(): number {
    return this.#listeners.size
  }

  /** Starts a task. Throws if the worker is lost. */
  begin(message: Extract<ToWorker, { type: 'sample' | 'score' | 'set-output-weights' }>, listener: TaskListener): void {
    if (this.#lost !== undefined) throw this.#lost
    this.#listeners.set(message.task, listener)
    this.#post(message)
  }

  grant(task: number, tokens: number): void {
    if (this.#listeners.has(task)) this.#post({ type: 'grant', task, tokens })
  }

  /** Stops the events of a task. No effect if it has ended. */
  cancel(task: number): void {
    if (this.#listeners.delete(task)) this.#post({ type: 'cancel', task })
  }

  /** Waits for the current pass, frees the model and waits for the end of the thread. */
  async close(): Promise<void> {
    this.#isClosing = true
    if (!this.isLost) this.#post({ type: 'close' })
    this.#end('The inference workers were shut down.')
    const impatience = setTimeout(() => {
      this.halt()
      void this.#thread.terminate()
    }, CLOSE_TIMEOUT_MS)
    await this.#exited.promise
    clearTimeout(impatience)
  }

  /** Makes it safe to terminate the thread, now or with the process. No further events follow. */
  halt(): void {
    this.#gate.shut(HALT_TIMEOUT_MS)
  }

  #post(message: ToWorker): void {
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
    this.#thread.postMessage(message)
  }

  #receive(message: FromWorker): void {
    switch (message.type) {
      case 'ready':
        this.#isReady = true
        this.#ready.resolve(message.backend)
        break
      case 'not-ready':
        this.#reason = message.message
        break
      case 'token':
        this.#tell(message, message.isLast)
        break
      case 'scored':
      case 'output-weights-set':
      case 'failed':
        this.#tell(message, true)
        break
    }
  }

  #tell(event: TaskEvent, isLast: boolean): void {
    const listener = this.#listeners.get(event.task)
    if (isLast) this.#listeners.delete(event.task)
    listener?.event(event)
  }

  #end(message: string): void {
    if (this.#lost !== undefined) return
    this.#lost = new WorkerLostError(message)
    this.#ready.reject(this.#lost)
    const listeners = [...this.#listeners.values()]
    this.#listeners.clear()
    for (const listener of listeners) listener.lost(this.#lost)
  }
}

/** Far longer than loading a model or reading a chunk takes. */
const CLOSE_TIMEOUT_MS = 10_000
const HALT_TIMEOUT_MS = 5_000
