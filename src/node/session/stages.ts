import * as z from 'zod'
import { Slots } from '../../lib/async/slots.ts'
import type { NodeStageMetrics } from '../../model/node.ts'

/** How many sessions may be at each stage of a node. */
export const StageWidths = z.strictObject({
  init: z.int().min(1).default(4).describe('Sandboxes that are being made ready at a time'),
  ready: z.int().min(0).default(4).describe('Sandboxes that may wait, ready, for a place to run; 0: none waits'),
  run: z.int().min(1).default(4).describe('Agents at work at a time'),
  postrun: z.int().min(1).default(4).describe('Sessions that are being built and graded at a time'),
  backlog: z.int().min(1).default(8).describe('Ended agents that may wait to be graded before new ones have to wait'),
})
export type StageWidths = z.infer<typeof StageWidths>

/**
 * The pools of a node. A session takes its place in the next before it gives up the one it has, so a full stage holds up
 * the one before it, and what is prepared, or waits to be graded, is bounded.
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
