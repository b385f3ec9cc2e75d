import { setImmediate } from 'node:timers/promises'
import type { LanguageModel } from './backend.ts'
import type { OutputWeights } from './output-weights.ts'
import { Prefill } from './prefill.ts'
import type { PrefixCache } from './prefix-cache.ts'
import type { ScoreRequest, SequenceRequest, TaskEvent } from './protocol.ts'
import { ScoreTask } from './score-task.ts'
import { SequenceTask } from './sequence-task.ts'
import type { Task } from './task.ts'

export interface SchedulerDeps {
  model: LanguageModel
  cache: PrefixCache
  /** Maximum number of concurrent tasks; further tasks wait, because each running task holds memory. */
  maxActive: number
  emit(event: TaskEvent): void
}

/**
 * Schedules the tasks of one thread in turns of one forward pass. A pass contains one sequence, although a batch would be
 * faster for short contexts: the model quantises a batch as a whole, so the result of a sequence would depend on its
 * neighbours instead of only on prompt, parameters and seed.
 */
export class Scheduler {
  readonly #deps: SchedulerDeps
  readonly #tasks = new Map<number, Task>()
  readonly #prefills = new Map<number, Prefill>()
  readonly #active: Task[] = []
  readonly #waiting: Task[] = []
  readonly #stalled = new Set<Task>()
  #outputWeights: OutputWeights = {}
  #running: Promise<void> | undefined

  constructor(deps: SchedulerDeps) {
    this.#deps = deps
  }

  /** Used from the next token on. */
  setOutputWeights(weights: OutputWeights): void {
    this.#outputWeights = weights
  }

  sample(id: number, request: SequenceRequest): void {
    const prefill = this.#prefills.get(request.request) ?? new Prefill(request.promptIds, this.#deps)
    this.#prefills.set(request.request, prefill)
    this.#start(new SequenceTask(id, request, { ...this.#deps, prefill, outputWeights: () => this.#outputWeights }))
  }

  score(id: number, request: ScoreRequest): void {
    const prefill = new Prefill(request.promptIds, this.#deps)
    this.#start(new ScoreTask(id, request, { ...this.#deps, prefill, outputWeights: () => this.#outputWeights }))
  }

  grant(id: number, tokens: number): void {
    const task = this.#tasks.get(id)
    if (!(task instanceof SequenceTask)) return
    task.grant(tokens)
    if (!this.#stalled.delete(task)) return
    this.#active.push(task)
    this.#wake()
  }

  cancel(id: number): void {
    const task = this.#tasks.get(id)
    if (task === undefined) return
    if (task instanceof SequenceTask) task.cancel()
    remove(this.#active, task)
    remove(this.#waiting, task)
    this.#stalled.delete(task)
    this.#end(task)
  }

  /** Drops all tasks and waits for the current pass. */
  async close(): Promise<void> {
    for (const id of this.#tasks.keys()) this.cancel(id)
    await this.#running
  }

  #start(task: Task): void {
    this.#tasks.set(task.id, task)
    this.#waiting.push(task)
    this.#wake()
  }

  #wake(): void {
    this.#running ??= this.#run()
  }

  async #run(): Promise<void> {
    for (let task = this.#next(); task !== undefined; task = this.#next()) {
      await this.#takeTurn(task)
      // Messages arrive only between iterations of the event loop, which a pass may have blocked.
      await setImmediate()
    }
    this.#running = undefined
  }

  #next(): Task | undefined {
    while (this.#active.length < this.#deps.maxActive && this.#waiting.length > 0)
      this.#active.push(this.#waiting.shift()!)
    return this.#active.shift()
  }

  async #takeTurn(task: Task): Promise<void> {
    try {
      const result = await task.turn()
      // Cancelled during the pass.
      if (!this.#tasks.has(task.id)) return
      switch (result) {
        case 'again':
          this.#active.push(task)
          break
        case 'stalled':
          this.#stalled.add(task)
          break
        case 'done':
          this.#end(task)
          break
      }
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      if (this.#tasks.has(task.id)) this.#deps.emit({ type: 'failed', task: task.id, message })
      this.#end(task)
    }
  }

  #end(task: Task): void {
    this.#tasks.delete(task.id)
    if (!(task instanceof SequenceTask)) return
    const isShared = [...this.#tasks.values()].some(
      (other) => other instanceof SequenceTask && other.prefill === task.prefill,
    )
    if (isShared) return
    for (const [request, prefill] of this.#prefills) if (prefill === task.prefill) this.#prefills.delete(request)
  }
}

function remove<T>(list: T[], item: T): void {
  const index = list.indexOf(item)
  if (index !== -1) list.splice(index, 1)
}
