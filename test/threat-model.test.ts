import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const root = join(import.meta.dirname, '..')

test('every defence of the threat model names tests that exist', () => {
  const page = readFileSync(join(root, 'docs/threat-model.md'), 'utf8')
  const [, table = ''] = page.split('## What is defended\n')
  const rows = (table.split('\n## ')[0] ?? '')
    .split('\n')
    .filter((line) => line.startsWith('| ') && !/^\| (?:Asset|-)/.test(line))
  expect(rows.length).toBeGreaterThan(10)
  for (const row of rows) {
    const named = [...row.matchAll(/`([\w/.-]+\.test\.ts)`/g)].map(([, path = '']) => path)
    expect(named, row).not.toEqual([])
    expect(named.filter((path) => !existsSync(join(root, path)))).toEqual([])
  }
})
