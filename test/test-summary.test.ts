import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { renderCounts } from '../scripts/steps.ts'
import type { TestSummary } from '../scripts/test-reporter.ts'

const root = dirname(import.meta.dirname)

test('the summary counts passed and failed tests and reports why a test was skipped', async () => {
  const summary = await summarise({
    'a.test.ts': `
      import { expect, test } from 'vitest'
      test('holds', () => expect(1).toBe(1))
      test('does not hold', () => expect(1).toBe(2))
      test('needs docker', (context) => context.skip('docker is not\\n  here'))
      test.todo('is still to be written')`,
  })
  expect(summary).toEqual({
    passed: 1,
    failed: 1,
    skipped: [
      { test: 'a.test.ts > needs docker', reason: 'docker is not here' },
      { test: 'a.test.ts > is still to be written', reason: 'the test is not written yet' },
    ],
  })
  expect(renderCounts(summary)).toBe('1 passed, 1 failed, 2 skipped')
})

test('the summary counts a file that does not load, a hook that throws and an uncaught error', async () => {
  const summary = await summarise({
    'broken.test.ts': `import './missing.ts'`,
    'hook.test.ts': `
      import { afterAll, expect, test } from 'vitest'
      afterAll(() => { throw new Error('cannot stop') })
      test('holds', () => expect(1).toBe(1))`,
    'uncaught.test.ts': `
      import { expect, test } from 'vitest'
      test('holds', async () => {
        void Promise.reject(new Error('nobody waits'))
        await new Promise((resolve) => setTimeout(resolve, 10))
        expect(1).toBe(1)
      })`,
  })
  expect(summary).toEqual({ passed: 2, failed: 3, skipped: [] })
  expect(renderCounts(summary)).toBe('2 passed, 3 failed')
})

/** Runs vitest with our reporter on the given test files. */
async function summarise(files: Record<string, string>): Promise<TestSummary> {
  const directory = await mkdtemp(join(tmpdir(), 'polar-summary-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  await symlink(join(root, 'node_modules'), join(directory, 'node_modules'))
  await writeFile(join(directory, 'vitest.config.ts'), 'export default {}')
  for (const [name, source] of Object.entries(files)) await writeFile(join(directory, name), source)
  const summaryFile = join(directory, 'summary.json')
  const args = [join(root, 'node_modules/.bin/vitest'), 'run', `--reporter=${join(root, 'scripts/test-reporter.ts')}`]
  spawnSync(process.execPath, args, {
    cwd: directory,
    env: { ...process.env, POLAR_TEST_SUMMARY: summaryFile },
  })
  return JSON.parse(await readFile(summaryFile, 'utf8')) as TestSummary
}
