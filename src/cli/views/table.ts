import { toVisibleLine } from '../../lib/visible-text.ts'

/** Formats a table whose first row is the heading. Numbers are right-aligned. A line break in a cell is escaped. */
export function formatTable(cells: readonly (readonly string[])[]): string {
  const rows = cells.map((row) => row.map(toVisibleLine))
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)))
  const isNumeric = widths.map((_, column) =>
    rows.slice(1).every((row) => /^[-\d.,%]*( ?(ms|s))?$/.test(row[column] ?? '')),
  )
  const line = (row: readonly string[]): string =>
    row
      .map((cell, column) =>
        isNumeric[column] ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd()
  const [heading = [], ...body] = rows
  const rule = widths.map((width) => '─'.repeat(width)).join('──')
  return [line(heading), rule, ...body.map(line)].map((text) => `${text}\n`).join('')
}
