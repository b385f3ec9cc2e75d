import type { NodeStageMetrics } from '../../model/node.ts'
import type { StageWidths } from '../../node/session/stages.ts'
import { createScreen, renderBar, type Screen } from './screen.ts'

interface StageViewOptions {
  widths: StageWidths
  stream?: Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>
  metrics(): NodeStageMetrics
  /** The last bar. */
  progress(): { done: number; total: number; note: string }
}

/** Shows a progress bar per stage on a terminal; without a terminal only the printed text. */
export function createStageView({ stream, ...options }: StageViewOptions): Screen {
  return createScreen(() => renderStages(options), stream)
}

export function renderStages({ widths, metrics, progress }: Omit<StageViewOptions, 'stream'>): string[] {
  const now = metrics()
  const { done, total, note } = progress()
  const waiting = (count: number): string => (count === 0 ? '' : `  ${count} waiting`)
  return [
    `  init    ${renderBar(now.init_inflight, widths.init)}${waiting(now.init_queue_depth)}`,
    `  ready   ${renderBar(now.ready_depth, widths.ready)}`,
    `  run     ${renderBar(now.run_inflight, widths.run)}`,
    `  grade   ${renderBar(now.postrun_inflight, widths.postrun)}${waiting(now.postrun_queue_depth)}`,
    `  done    ${renderBar(done, total)}${note === '' ? '' : `  ${note}`}`,
  ]
}
