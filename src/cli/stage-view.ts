import type { NodeStageMetrics } from '../model/node.ts'
import type { StageWidths } from '../node/stages.ts'

interface StageViewOptions {
  widths: StageWidths
  stream?: Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>
  metrics(): NodeStageMetrics
  /** What stands below the bars. */
  progress(): { done: number; total: number; note: string }
}

export interface StageView extends Disposable {
  /** Text that stays, above the bars. */
  print(text: string): void
}

const REDRAW_MS = 200
const BAR = 24

/** A bar per stage, where somebody looks; elsewhere only what is printed. */
export function createStageView({ stream = process.stderr, ...options }: StageViewOptions): StageView {
  if (!stream.isTTY) return { print: (text) => void stream.write(text), [Symbol.dispose]: () => {} }
  let drawn = 0
  const clear = (): void => {
    if (drawn > 0) stream.write(`\x1b[${drawn}F\x1b[0J`)
    drawn = 0
  }
  const draw = (): void => {
    clear()
    const lines = renderStages(options)
    const width = Math.max(40, (stream.columns ?? 80) - 1)
    stream.write(lines.map((line) => `${line.slice(0, width)}\n`).join(''))
    drawn = lines.length
  }
  const timer = setInterval(draw, REDRAW_MS)
  return {
    print(text) {
      clear()
      stream.write(text)
      draw()
    },
    [Symbol.dispose]() {
      clearInterval(timer)
      clear()
    },
  }
}

export function renderStages({ widths, metrics, progress }: Omit<StageViewOptions, 'stream'>): string[] {
  const now = metrics()
  const { done, total, note } = progress()
  const waiting = (count: number): string => (count === 0 ? '' : `  ${count} waiting`)
  return [
    `  init    ${bar(now.init_inflight, widths.init)}${waiting(now.init_queue_depth)}`,
    `  ready   ${bar(now.ready_depth, widths.ready)}`,
    `  run     ${bar(now.run_inflight, widths.run)}`,
    `  grade   ${bar(now.postrun_inflight, widths.postrun)}${waiting(now.postrun_queue_depth)}`,
    `  done    ${bar(done, total)}${note === '' ? '' : `  ${note}`}`,
  ]
}

function bar(count: number, width: number): string {
  const filled = width === 0 ? 0 : Math.min(BAR, Math.round((count / width) * BAR))
  return `${'█'.repeat(filled)}${'░'.repeat(BAR - filled)} ${count}/${width}`
}
