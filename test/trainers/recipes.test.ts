import { afterAll, beforeAll, expect, test } from 'vitest'
import { RecipeFolder, type RecipeRow } from '../support/recipe-run.ts'
import { installTrainer } from '../support/trainer-environment.ts'

let folder: RecipeFolder
beforeAll(async () => {
  folder = await RecipeFolder.create()
  expect(folder.traces).toHaveLength(6)
})
afterAll(() => folder[Symbol.asyncDispose]())

/** Rows that the trainer read, or the reason why it cannot be installed. */
async function readWith(name: string, args: readonly string[] = []): Promise<RecipeRow[] | string> {
  const installed = installTrainer(name)
  if (typeof installed === 'string') return installed
  const rows = await folder.run(name, installed.python, { args })
  const versions = [name, 'torch'].map((one) => `${one} ${installed.versions.get(one) ?? '(checkout)'}`)
  console.log(`${name}: ${rows.length} samples; ${versions.join(', ')}; ${installed.megabytes} MB`)
  return rows
}

test('TRL reads the RolloutSamples through its queue and packs them for training', async ({ skip }) => {
  const rows = await readWith('trl')
  if (typeof rows === 'string') return skip(`TRL cannot be installed: ${rows}`)
  const expected = folder.expectedRows().map((row, i) => ({
    ...row,
    group: Number(row.group),
    advantage: Math.fround(folder.traces[i]!.metadata['advantage'] as number),
  }))
  expect(rows).toEqual(expected)
})

test('SkyRL joins and validates the generator outputs', async ({ skip }) => {
  const rows = await readWith('skyrl')
  if (typeof rows === 'string') return skip(`SkyRL cannot be installed: ${rows}`)
  expect(rows).toEqual(folder.expectedRows().map((row) => ({ ...row, last: true })))
})

test('verl replays the dataset in its agent loop into a training batch', async ({ skip }) => {
  const rows = await readWith('verl')
  if (typeof rows === 'string') return skip(`verl cannot be installed: ${rows}`)
  expect(rows).toEqual(folder.expectedRows())
})

test('slime loads the rollout file', async ({ skip }) => {
  const source = process.env['SLIME_SOURCE']
  if (source === undefined) return skip('slime is not on PyPI; set SLIME_SOURCE to a checkout')
  const rows = await readWith('slime', [source])
  if (typeof rows === 'string') return skip(`the packages that slime imports cannot be installed: ${rows}`)
  expect(rows).toEqual(folder.expectedRows().map((row) => ({ ...row, group: Number(row.group) })))
})
