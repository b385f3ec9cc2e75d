import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import * as z from 'zod'
import { Grading, type GradeOptions } from '../../../test/support/grade.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import { evaluatorsWith } from './index.ts'
import type { EvaluatorPlug } from './evaluator.ts'

const FixedConfig = z.strictObject({
  kind: z.literal('says'),
  result: z.unknown().optional(),
  fails: z.boolean().default(false),
  takes: z.string().optional(),
  state: z.boolean().default(false),
  range: z.tuple([z.number(), z.number()]).optional(),
})
/** Returns the configured result. */
const fixedResult: EvaluatorPlug = {
  config: FixedConfig,
  create(given) {
    const config = FixedConfig.parse(given)
    return {
      needs: { sandbox: false, agentState: config.state },
      ...(config.range !== undefined && { rewards: config.range }),
      ...(config.takes !== undefined && {
        async collect(agent, { submission, evidence }) {
          await agent.download(config.takes!, `${submission}/taken`, { maxBytes: 1000, maxFiles: 10 })
          await evidence.write('taken.txt', submission)
        },
      }),
      async evaluate({ evidence }) {
        await evidence.write('said.json', '{}')
        if (config.fails) throw new RolloutError('evaluator.crashed', 'It broke')
        return config.result as EvalResult
      },
    }
  },
}
const registry = evaluatorsWith([fixedResult])
const deps = { now: Date.now, secret: () => undefined, mayCall: () => true }

describe('the evaluator weighted', () => {
  let grading: Grading
  beforeAll(async () => {
    grading = await Grading.start('local')
  })
  afterAll(() => grading[Symbol.asyncDispose]())

  const part = (name: string, result: object, more: object = {}, config: object = {}) => ({
    name,
    strategy: 'says',
    config: { result: { metadata: {}, ...result }, ...config },
    ...more,
  })
  const create = (parts: object[]) => registry.create(registry.config.parse({ kind: 'weighted', parts }), deps)
  const grade = (parts: object[], options: Omit<GradeOptions, 'evaluator'> = {}) =>
    grading.grade({ ...options, evaluator: create(parts) })

  test('adds weighted rewards and returns each as a component', async () => {
    const { result, evidence } = await grade([
      part(
        'tests',
        { outcome_reward: 1, components: { unit: 1, slow: 0.5 }, metadata: { passed: 3 } },
        { weight: 0.8 },
      ),
      part('style', { outcome_reward: 0.5 }, { weight: 0.4 }),
      part('length', { outcome_reward: 2 }, { weight: -0.1 }, { range: [0, 5] }),
    ])
    expect(result.outcome_reward).toBeCloseTo(0.8)
    expect(result.components).toEqual({ tests: 1, 'tests.unit': 1, 'tests.slow': 0.5, style: 0.5, length: 2 })
    expect(result.metadata).toMatchObject({ parts: { tests: { weight: 0.8, reward: 1, passed: 3 } } })
    expect([...evidence.keys()]).toEqual(['tests.said.json', 'style.said.json', 'length.said.json'])
  })

  test('a failed required part makes the outcome 0, and all components are returned', async () => {
    const style = part('style', { outcome_reward: 1 })
    const low = part('tests', { outcome_reward: 0.4 }, { required: 0.5 })
    expect((await grade([style, low])).result).toMatchObject({
      outcome_reward: 0,
      components: { style: 1, tests: 0.4 },
      metadata: { required_failed: ['tests'] },
    })
    expect((await grade([style, part('tests', { outcome_reward: 0 }, { required: true })])).result.outcome_reward).toBe(
      0,
    )
    expect(
      (await grade([style, part('tests', { outcome_reward: 0.1 }, { required: true })])).result.outcome_reward,
    ).toBe(1.1)
  })

  test('adds rewards of traces; a part without trace rewards adds its outcome to each trace', async () => {
    const parts = [
      part('steps', { outcome_reward: 0.5, trace_rewards: [1, null] }, { weight: 2 }),
      part('tests', { outcome_reward: 1 }),
    ]
    expect((await grade(parts, { samples: 2 })).result).toMatchObject({ outcome_reward: 2, trace_rewards: [3, 2] })
  })

  test('throws if a part throws or returns no outcome', async () => {
    await expect(grade([part('a', { outcome_reward: 1 }), part('b', {}, {}, { fails: true })])).rejects.toThrow(
      'It broke',
    )
    await expect(grade([part('a', { trace_rewards: [1] })])).rejects.toThrow(/Part a .* returned no outcome_reward/)
  })

  test('its range covers all sums of its parts, and 0', () => {
    const parts = [
      part('tests', {}, { weight: 0.8 }),
      part('length', {}, { weight: -0.1 }, { range: [0, 5] }),
      part('points', {}, { weight: 2 }, { range: [-1, 3] }),
    ]
    const [lowest, highest] = create(parts).rewards!
    expect(lowest).toBeCloseTo(-2.5)
    expect(highest).toBeCloseTo(6.8)
    expect(create([part('a', {}, {}, { range: [5, 6] })]).rewards).toEqual([0, 6])
  })

  test.each([
    ['outside of its range', { outcome_reward: 2 }],
    ['below its range', { outcome_reward: -0.5 }],
    ['not a number', { outcome_reward: Number.NaN }],
    ['infinite', { outcome_reward: Infinity }],
    ['outside for one trace', { outcome_reward: 1, trace_rewards: [7] }],
  ])('throws if the reward of a part is %s', async (_, result) => {
    await expect(grade([part('a', { outcome_reward: 1 }), part('b', result)])).rejects.toThrow(
      /^Part b \(says\): the reward .* is outside of the declared range, 0 to 1$/,
    )
  })

  test('a part that fails because of the agent counts as its worst reward, so that a penalty cannot be avoided', async () => {
    const broken = { takes: 'missing', range: [0, 4] }
    const { result } = await grade([
      part('tests', { outcome_reward: 1 }),
      part('penalty', { outcome_reward: 0 }, { weight: -0.5 }, broken),
      part('bonus', { outcome_reward: 4 }, { weight: 1 }, { ...broken, range: [-1, 4] }),
    ])
    expect(result).toMatchObject({ outcome_reward: 1 - 2 - 1, components: { penalty: 4, bonus: -1 } })
  })

  test('each part collects files into its own folder, and a missing file affects only its part', async () => {
    const { result, evidence } = await grade(
      [
        part('first', { outcome_reward: 1 }, {}, { takes: 'there' }),
        part('second', { outcome_reward: 1 }, {}, { takes: 'there' }),
        part('third', { outcome_reward: 1 }, {}, { takes: 'missing' }),
      ],
      { agent: 'echo x > there' },
    )
    expect(result).toMatchObject({
      outcome_reward: 2,
      components: { third: 0 },
      metadata: { parts: { third: { failure: 'workspace.file-missing' } } },
    })
    expect(String(evidence.get('first.taken.txt'))).not.toBe(String(evidence.get('second.taken.txt')))
  })

  test('has the combined needs of its parts', () => {
    expect(create([part('a', {})])).toMatchObject({ needs: { sandbox: false, agentState: false } })
    expect(create([part('a', {}), part('b', {}, {}, { state: true })]).needs.agentState).toBe(true)
    expect(create([part('a', {}), { name: 'c', strategy: 'command', config: { command: 'true' } }]).needs.sandbox).toBe(
      true,
    )
    expect(create([part('a', {})]).collect).toBeUndefined()
  })

  test('reports the path of an invalid setting of a part', () => {
    const problems = (parts: object[]) =>
      registry.config
        .safeParse({ kind: 'weighted', parts })
        .error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`)
    expect(problems([part('a', {}), part('a', {})])).toEqual(['parts.1.name: another part has the name a'])
    expect(problems([{ name: 'a', strategy: 'command', config: { command: 'true', mispelt: 1 } }])).toEqual([
      'parts.0.config: Unrecognized key: "mispelt"',
    ])
    expect(problems([{ name: 'a', strategy: 'command' }])?.[0]).toMatch(/^parts\.0\.config\.command: /)
    expect(problems([{ name: 'a', strategy: 'weighted', config: {} }])?.[0]).toMatch(
      /^parts\.0\.strategy: must be one of/,
    )
    expect(problems([{ name: '../a', strategy: 'says' }])?.[0]).toMatch(/^parts\.0\.name: /)
    expect(problems([])?.[0]).toMatch(/^parts: /)
  })
})
