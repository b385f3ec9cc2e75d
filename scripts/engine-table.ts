import { readObserved, type Observed } from '../test/engines/observations.ts'

const BEGIN = '<!-- The lines up to the end mark are made from test/engines/observed.json by npm run docs. -->'
const END = '<!-- end -->'

/** Replaces the table of docs/engines.md by one of the recorded observations. */
export function replaceEngineTable(page: string): string {
  const [start, end] = [page.indexOf(BEGIN), page.indexOf(END)]
  if (start === -1 || end < start) throw new Error('docs/engines.md has no marks for the table of engines.')
  return `${page.slice(0, start + BEGIN.length)}\n\n${renderObserved(readObserved())}\n\n${page.slice(end)}`
}

/** One column for each engine, one row for each thing that was seen. */
export function renderObserved(observed: Readonly<Record<string, Observed>>): string {
  const engines = Object.entries(observed)
  const rows = [...new Set(engines.flatMap(([, { seen }]) => Object.keys(seen)))]
  const lines = [
    ['', ...engines.map(([name, { version }]) => `${name} ${version}`)],
    ['---', ...engines.map(() => '---')],
    ['date', ...engines.map(([, { date }]) => date)],
    ...rows.map((row) => [row, ...engines.map(([, { seen }]) => seen[row] ?? '–')]),
  ]
  return lines.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}
