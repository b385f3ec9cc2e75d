import { readFile } from 'node:fs/promises'
import { expect, test } from 'vitest'
import { RUNTIME_NAMES } from './support/attacks/attack-results.ts'
import { attacks } from './support/attacks/catalogue.ts'

const HINT = 'run npx vitest run --project e2e attacks, then node scripts/generate-attack-table.ts'

/** Cells of every row of a table with these columns. */
function tableRows(page: string, columns: readonly string[]): string[][] {
  const rows = page
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map((line) => line.split(/(?<!\\)\|/).slice(1, -1).map((cell) => cell.trim().replaceAll('\\|', '|'))) // prettier-ignore
  return rows.filter((cells) => cells.length === columns.length && !/^-+$/.test(cells[0]!) && cells[0] !== columns[0])
}

test('attacks have distinct ids and titles', () => {
  expect(new Set(attacks.map(({ id }) => id)).size).toBe(attacks.length)
  expect(new Set(attacks.map(({ title }) => title)).size).toBe(attacks.length)
})

test('at least 30 attacks test more than the named defences, and each named defence is attacked', () => {
  const defences = attacks.map(({ defence }) => defence)
  expect(defences.filter((defence) => defence === 'further').length).toBeGreaterThanOrEqual(30)
  expect(new Set(defences).size).toBe(11)
})

test('docs/attacks.md has a result of every attack for every runtime, and each attack holds or does not apply', async () => {
  const page = await readFile(new URL('../docs/attacks.md', import.meta.url), 'utf8')
  const rows = tableRows(page, ['Attack', 'Defence', ...RUNTIME_NAMES]).filter(
    (cells) => !/^(?:\d+|Attacks)$/.test(cells[1]!),
  )
  expect(new Set(rows.map(([title]) => title)), HINT).toEqual(new Set(attacks.map(({ title }) => title)))
  expect(rows).toHaveLength(attacks.length)
  for (const [title, , ...results] of rows)
    for (const result of results) expect(result, title).toMatch(/^(?:holds$|does not apply: )/)
})
