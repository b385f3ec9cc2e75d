import { afterAll, beforeAll, expect, test } from 'vitest'
import { pythonEnvironment } from '../support/python-environment.ts'
import { loadRecipes } from '../support/recipe.ts'
import { RecipeFolder } from '../support/recipe-run.ts'

const models = pythonEnvironment('export-schemas', 'export-requirements.txt', ['--no-deps', '--ignore-requires-python'])
const pyarrow = pythonEnvironment('python-export', 'python-export-requirements.txt')

/** nemo_gym.openai_utils imports the HTTP client of NeMo Gym's servers, whose packages are not installed. */
const WITHOUT_SERVERS = `
import sys, types
server_utils = types.ModuleType("nemo_gym.server_utils")
server_utils.__getattr__ = lambda name: object
sys.modules["nemo_gym.server_utils"] = server_utils
`

let folder: RecipeFolder
beforeAll(async () => {
  folder = await RecipeFolder.create()
})
afterAll(() => folder[Symbol.asyncDispose]())

test('every recipe of docs/export.md runs in this file or in test/trainers', () => {
  const here = ['parquet', 'nemo_gym', 'atif']
  const trainers = ['trl', 'skyrl', 'verl', 'slime']
  expect([...loadRecipes().keys()].toSorted()).toEqual([...here, ...trainers].toSorted())
})

test('pyarrow reads the recipe’s table', { timeout: 900_000 }, async ({ skip }) => {
  const missing = pyarrow.install()
  if (missing !== undefined) return skip(`pyarrow cannot be installed: ${missing}`)
  const rows = await folder.run('parquet', pyarrow.python)
  expect(rows).toEqual(folder.expectedRows().map(({ ids, trained, logprobs }) => ({ ids, trained, logprobs })))
})

test('NeMo Gym reads the recipe’s responses', { timeout: 900_000 }, async ({ skip }) => {
  const missing = models.install()
  if (missing !== undefined) return skip(`nemo-gym cannot be installed: ${missing}`)
  const rows = await folder.run('nemo_gym', models.python, { prelude: WITHOUT_SERVERS })
  expect(rows).toEqual(folder.expectedRows().map(({ group: _, ...row }) => row))
})

test('Harbor reads the recipe’s trajectories', { timeout: 900_000 }, async ({ skip }) => {
  const missing = models.install()
  if (missing !== undefined) return skip(`harbor cannot be installed: ${missing}`)
  const rows = await folder.run('atif', models.python)
  expect(rows).toEqual(folder.expectedRows().map((row) => ({ ...row, version: 'ATIF-v1.8' })))
})
