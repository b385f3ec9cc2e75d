/** Eighths of a character cell. */
const BLOCKS = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
const HEIGHT = 6
const WIDTH = 70
const MAX_COLUMN = 5

/** Draws values from 0 to 1 as columns with an axis. `total` values fit; of longer series, the latest are shown. */
export function renderCurve(values: readonly number[], total: number): string[] {
  const column = Math.min(MAX_COLUMN, Math.max(1, Math.floor(WIDTH / total)))
  const shown = values.slice(-Math.floor(WIDTH / column))
  return Array.from({ length: HEIGHT }, (_, i) => {
    const row = HEIGHT - 1 - i
    const label = row === HEIGHT - 1 ? '1.0' : row === 0 ? '0.0' : '   '
    const cells = shown.map((value) => {
      const eighths = Math.round(Math.min(1, Math.max(0, value)) * HEIGHT * 8) - row * 8
      return BLOCKS[Math.min(8, Math.max(0, eighths))]!.repeat(column)
    })
    return `  ${label} │${cells.join('')}`
  })
}
