/** Eighths of a character cell. */
const BLOCKS = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
const HEIGHT = 6
const MAX_COLUMNS = 70

/** Draws values from 0 to 1 as columns, with an axis. Long series show the latest values. */
export function renderCurve(values: readonly number[]): string[] {
  const shown = values.slice(-MAX_COLUMNS)
  return Array.from({ length: HEIGHT }, (_, i) => {
    const row = HEIGHT - 1 - i
    const label = row === HEIGHT - 1 ? '1.0 ' : row === 0 ? '0.0 ' : '    '
    const cells = shown.map((value) => {
      const eighths = Math.round(Math.min(1, Math.max(0, value)) * HEIGHT * 8) - row * 8
      return BLOCKS[Math.min(8, Math.max(0, eighths))]!
    })
    return `  ${label}│${cells.join('')}`
  })
}
