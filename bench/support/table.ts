type Rows = readonly (readonly string[])[]

/** Columns of text, the first to the left, the others to the right. The first row is the heading. */
export function printTable(rows: Rows): void {
  console.log(`\n${formatTable(rows)}`)
}

export function printTitledTable(title: string, rows: Rows): void {
  console.log(`\n${title}\n${formatTable(rows)}`)
}

function formatTable(rows: Rows): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)))
  const pad = (cell: string, column: number): string =>
    column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)
  const lines = rows.map((row) => row.map(pad).join('  '))
  const rule = '─'.repeat(Math.max(...lines.map((line) => line.length)))
  const [heading, ...body] = lines
  return [heading, rule, ...body].join('\n')
}
