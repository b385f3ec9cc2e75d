import { toVisibleLine, toVisibleText } from '../../lib/visible-text.ts'

type Stream = Pick<NodeJS.WriteStream, 'isTTY' | 'write' | 'columns'>

/** Lines at the bottom of a terminal that are redrawn regularly. Without a terminal they are not shown. */
export interface Screen extends Disposable {
  /** Prints permanent text above the lines. */
  print(text: string): void
}

const REDRAW_MS = 200

export function createScreen(render: () => readonly string[], stream: Stream = process.stderr): Screen {
  if (!stream.isTTY) return { print: (text) => void stream.write(toVisibleText(text)), [Symbol.dispose]: () => {} }
  let drawn = 0
  const clear = (): void => {
    if (drawn > 0) stream.write(`\x1b[${drawn}F\x1b[0J`)
    drawn = 0
  }
  const draw = (): void => {
    const width = Math.max(40, (stream.columns ?? 80) - 1)
    const lines = render().map((line) => toVisibleLine(line).slice(0, width).toWellFormed())
    // A single write avoids flicker.
    stream.write(`${drawn > 0 ? `\x1b[${drawn}F\x1b[0J` : ''}${lines.map((line) => `${line}\n`).join('')}`)
    drawn = lines.length
  }
  const timer = setInterval(draw, REDRAW_MS)
  return {
    print(text) {
      clear()
      stream.write(toVisibleText(text))
      draw()
    },
    [Symbol.dispose]() {
      clearInterval(timer)
      clear()
    },
  }
}

const BAR = 24

export function renderBar(count: number, of: number): string {
  return `${drawBar(of === 0 ? 0 : count / of)} ${count}/${of}`
}

/** `part` is from 0 to 1. */
export function drawBar(part: number): string {
  const filled = Math.min(BAR, Math.round(part * BAR))
  return `${'█'.repeat(filled)}${'░'.repeat(BAR - filled)}`
}
