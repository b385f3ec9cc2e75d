import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'

const root = dirname(import.meta.dirname)
const pages = [
  'README.md',
  'CONTRIBUTING.md',
  'clients/python/README.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
]

test.each(pages)('%s: every linked file exists, and every source file it names', (page) => {
  const text = readFileSync(join(root, page), 'utf8')
  const links = [...text.matchAll(/\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)/g)].map(([, path]) =>
    join(dirname(page), path!),
  )
  const named = [...text.matchAll(/`((?:src|test|packages|scripts|bench|examples|clients)\/[\w./-]+\.\w+)`/g)].map(
    ([, path]) => path!,
  )
  expect([...links, ...named].filter((path) => !existsSync(join(root, path)))).toEqual([])
})

test('docs/library.md contains the program of examples/library/run.ts', () => {
  const read = (path: string): string => readFileSync(join(root, path), 'utf8')
  expect(read('docs/library.md')).toContain(`\`\`\`ts\n${read('examples/library/run.ts')}\`\`\`\n`)
})

test.each(['docs/python.md', 'clients/python/README.md'])(
  '%s contains the program of clients/python/examples/grpo.py, of at most 40 lines',
  (page) => {
    const program = readFileSync(join(root, 'clients/python/examples/grpo.py'), 'utf8')
    expect(readFileSync(join(root, page), 'utf8')).toContain(`\`\`\`python\n${program}\`\`\`\n`)
    expect(program.trimEnd().split('\n').length).toBeLessThanOrEqual(40)
  },
)
