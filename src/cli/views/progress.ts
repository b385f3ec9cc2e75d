import { toVisibleLine } from '../../lib/visible-text.ts'
import { drawBar } from './screen.ts'

export interface Progress {
  /** `note` is printed after the bar. */
  advance(steps?: number, note?: string): void
  /** Removes the bar. Idempotent. */
  finish(): void
}

interface ProgressOptions {
  total: number
  /** Text before the bar. */
  label: string
  stream?: Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>
  /** Milliseconds, any origin. */
  now?: () => number
}

const REDRAW_MS = 100

/** Shows a progress bar on a terminal; without a terminal nothing. */
export function createProgress({ total, label, stream = process.stderr, now = Date.now }: ProgressOptions): Progress {
  if (!stream.isTTY) return { advance: () => {}, finish: () => {} }
  let done = 0
  let drawnAt = -Infinity
  let isShown = false
  return {
    advance(steps = 1, note = '') {
      done += steps
      if (now() - drawnAt < REDRAW_MS && done < total) return
      drawnAt = now()
      isShown = true
      const line = toVisibleLine(
        `${label} ${drawBar(total === 0 ? 1 : done / total)} ${done}/${total}${note === '' ? '' : `  ${note}`}`,
      )
      stream.write(`\r\x1b[2K${line.slice(0, Math.max(20, (stream.columns ?? 80) - 1)).toWellFormed()}`)
    },
    finish() {
      if (isShown) stream.write('\r\x1b[2K')
      isShown = false
    },
  }
}
