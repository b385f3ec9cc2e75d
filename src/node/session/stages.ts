import * as z from 'zod'
import { Slots, type Slot } from '../../lib/async/slots.ts'
import type { NodeStageMetrics } from '../../model/node.ts'

/** Limits the sessions in each stage of a node. */
export const StageWidths = z.strictObject({
  init: z.int().min(1).default(4).describe('Sandboxes prepared at a time'),
  ready: z.int().min(0).default(4).describe('Prepared sandboxes that may wait for a run slot; 0: none'),
  run: z.int().min(1).default(4).describe('Harnesses that run at a time'),
  postrun: z.int().min(1).default(4).describe('Sessions built and graded at a time'),
  backlog: z.int().min(1).default(8).describe('Ended sessions that may wait for grading; more block the run slots'),
})
export type StageWidths = z.infer<typeof StageWidths>

/**
 * The semaphores of a node, one for each stage. A session acquires a slot of the next stage before it releases its slot,
 * so a full stage blocks the stage before it, and the number of prepared and of ungraded sandboxes is bounded.
 */
export class Stages {
  readonly init: Slots
  readonly ready: Slots
  readonly run: Slots
  readonly backlog: Slots
  readonly postrun: Slots

  constructor(widths: StageWidths) {
    this.init = new Slots(widths.init)
    this.ready = new Slots(widths.ready)
    this.run = new Slots(widths.run)
    this.backlog = new Slots(widths.backlog)
    this.postrun = new Slots(widths.postrun)
  }

  metrics(): NodeStageMetrics {
    return {
      init_queue_depth: this.init.waiting,
      init_inflight: this.init.inUse,
      ready_depth: this.ready.inUse,
      run_inflight: this.run.inUse,
      postrun_queue_depth: this.backlog.inUse,
      postrun_inflight: this.postrun.inUse,
    }
  }
}

/** The slot of one session: it holds a slot of at most one stage. */
export class StageSlot implements Disposable {
  readonly #stages: Stages
  readonly #priority: number
  #slot: Slot | undefined

  constructor(stages: Stages, priority: number) {
    this.#stages = stages
    this.#priority = priority
  }

  /** Waits for a slot of the stage, then releases the held slot. Rejects if `signal` is aborted. */
  async moveTo(stage: 'init' | 'ready' | 'run' | 'backlog' | 'postrun', signal?: AbortSignal): Promise<void> {
    const next = await this.#stages[stage].acquire(this.#priority, signal)
    this.release()
    this.#slot = next
    signal?.throwIfAborted()
  }

  /** Idempotent. */
  release(): void {
    this.#slot?.release()
    this.#slot = undefined
  }

  [Symbol.dispose](): void {
    this.release()
  }
}
