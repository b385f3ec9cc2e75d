import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Grading } from '../../test/support/grade.ts'
import { StrategySpec } from '../model/task.ts'
import { createEvaluator } from './create-evaluator.ts'

let dir: string
beforeAll(async () => {
  dir = await realpath(await mkdtemp(join(tmpdir(), 'polar-evaluator-')))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

async function moduleOf(name: string, source: string): Promise<string> {
  await writeFile(join(dir, name), source)
  return join(dir, name)
}
/** A user's module, which imports zod from its installed path. */
const constant = (kind: string) => `
import * as z from '${import.meta.resolve('zod')}'
const config = z.strictObject({ kind: z.literal('${kind}'), reward: z.number() })
export const evaluator = {
  config,
  create: ({ reward }) => ({
    needs: { sandbox: false, agentState: false },
    rewards: [0, 3],
    evaluate: async () => ({ outcome_reward: reward, metadata: {} }),
  }),
}`

const deps = { now: Date.now, secret: () => undefined, mayCall: () => true }
const create = (strategy: string, config: object = {}, allowed: readonly string[] = []) =>
  createEvaluator(StrategySpec.parse({ strategy, config }), { allowed, deps })
async function rewardOf(...given: Parameters<typeof create>): Promise<number | null | undefined> {
  await using grading = await Grading.start('local')
  return (await grading.grade({ evaluator: await create(...given) })).result.outcome_reward
}

test('createEvaluator() creates a built-in evaluator by name', async () => {
  expect(await rewardOf('session_completed')).toBe(1)
})

test('createEvaluator() loads a module by its path, alone and as a part of weighted', async () => {
  const path = await moduleOf('constant.mts', constant('constant'))
  const other = await moduleOf('other.mjs', constant('other'))
  expect(await rewardOf(path, { reward: 0.5 }, [path])).toBe(0.5)
  const parts = [
    { name: 'one', strategy: path, config: { reward: 1 } },
    { name: 'two', strategy: other, config: { reward: 3 }, weight: 2 },
    { name: 'three', strategy: 'session_completed' },
  ]
  expect(await rewardOf('weighted', { parts }, [path, other])).toBe(8)
})

test('createEvaluator() does not run a module that is not allowed', async () => {
  const path = await moduleOf('hostile.mjs', 'globalThis.hostileRan = true; export const evaluator = {}')
  const refusal = { code: 'config.invalid', message: expect.stringContaining('not on the list') }
  await expect(create(path)).rejects.toMatchObject(refusal)
  await expect(create('weighted', { parts: [{ name: 'a', strategy: path }] })).rejects.toMatchObject(refusal)
  expect('hostileRan' in globalThis).toBe(false)
})

test.each([
  ['nothing.mjs', 'export const other = 1', 'must export "evaluator"'],
  ['no-create.mjs', 'export const evaluator = { config: {} }', 'lacks a function create()'],
  ['no-kind.mjs', 'export const evaluator = { config: {}, create() {} }', "kind: z.literal('<its name>')"],
  ['taken.mjs', constant('command'), 'kind "command" is taken'],
])('createEvaluator() reports the problem of %s', async (name, source, message) => {
  const path = await moduleOf(name, source)
  await expect(create(path, {}, [path])).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringContaining(message),
  })
})

test('createEvaluator() lists every invalid field', async () => {
  await expect(create('session_complete')).rejects.toThrow(
    /^evaluator\.strategy: unknown evaluator "session_complete"\. Use session_completed, .*weighted, or the absolute path of a module\.$/,
  )
  await expect(create('command', { command: '', mispelt: 1, timeout_seconds: -1 })).rejects.toThrow(
    /evaluator\.config\.command: .*\n.*evaluator\.config\.timeout_seconds: .*\n.*evaluator\.config: Unrecognized key: "mispelt"/,
  )
  const path = await moduleOf('strict.mjs', constant('strict'))
  await expect(create(path, { reward: 'x' }, [path])).rejects.toThrow(/evaluator\.config\.reward: /)
})
