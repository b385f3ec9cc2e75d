import fc from 'fast-check'
import { expect, test } from 'vitest'
import * as z from 'zod'
import { anySession, describeExporter, jsonNumbers, readLines, writeFile } from './exporter.contract.ts'
import { trl } from './trl.ts'

/** `RolloutSample` of TRL's async GRPO, except that the reward of an ungraded sample may be null. */
const RolloutSample = z
  .strictObject({
    prompt: z.array(z.looseObject({ role: z.string() })),
    completion: z.array(z.looseObject({ role: z.string() })),
    input_ids: z.array(z.int()),
    completion_mask: z.array(z.literal([0, 1])),
    old_log_probs: z.array(z.number()).nullable(),
    advantage: z.number().nullable(),
    model_version: z.int().nullable(),
    group_id: z.int().nullable(),
    metrics: z.record(z.string(), z.number()),
  })
  .refine(({ input_ids, completion_mask }) => input_ids.length === completion_mask.length)
  .refine(({ input_ids, old_log_probs }) => old_log_probs === null || old_log_probs.length === input_ids.length)

/** Return value of `rollout_func` for one completion. */
const Rollout = z.looseObject({
  prompt_ids: z.array(z.int()),
  completion_ids: z.array(z.int()),
  logprobs: z.array(z.number()).nullable(),
  env_mask: z.array(z.literal([0, 1])),
  reward: z.number().nullable(),
})
type Rollout = z.infer<typeof Rollout>

/** The conversion that docs/export.md documents. */
function toRolloutSample(rollout: Rollout): z.infer<typeof RolloutSample> {
  const zeros = rollout.prompt_ids.map(() => 0 as const)
  return RolloutSample.parse({
    prompt: rollout['prompt'],
    completion: rollout['completion'],
    input_ids: [...rollout.prompt_ids, ...rollout.completion_ids],
    completion_mask: [...zeros, ...rollout.env_mask],
    old_log_probs: rollout.logprobs === null ? null : [...zeros, ...rollout.logprobs],
    advantage: rollout['advantage'],
    model_version: rollout['model_version'],
    group_id: rollout['group_id'],
    metrics: rollout['metrics'],
  })
}

describeExporter('trl', {
  create: () => trl.create({ kind: 'trl' }, {}),
  read: (file) => readLines(file).map((line) => Rollout.parse(line)),
  check(records, session) {
    const read = records as Rollout[]
    const samples = [...session.samples()]
    expect(read).toHaveLength(samples.length)
    for (const [i, sample] of samples.entries()) {
      const rollout = read[i] as Rollout
      const record = toRolloutSample(rollout)
      expect(rollout.prompt_ids).toHaveLength(sample.promptLength)
      expect(record).toMatchObject({
        input_ids: jsonNumbers(sample.ids),
        completion_mask: jsonNumbers(sample.mask),
        advantage: sample.advantage ?? null,
        metrics: sample.components ?? {},
        completion: sample.messages().response,
      })
      const isTrained = (_: unknown, at: number): boolean => sample.mask[at] === 1
      const logprobs = jsonNumbers(sample.logprobs).filter(isTrained)
      if (logprobs.includes(null)) expect(record.old_log_probs).toBeNull()
      else expect(record.old_log_probs?.filter(isTrained)).toEqual(logprobs)
      expect(rollout.reward).toBe(sample.reward ?? null)
      const versions = sample.calls.filter((call) => call.isTrained).map((call) => call.weightVersion)
      const oldest = versions.includes(undefined) ? null : Math.min(...versions.map(Number))
      expect(record.model_version).toBe(oldest)
    }
  },
})

test('--set modelVersion sets the version of samples without a known version only', () => {
  const write = (config: object, session: Parameters<typeof writeFile>[1][number]): Rollout[] =>
    readLines(writeFile(trl.create(trl.config.parse({ kind: 'trl', ...config }), {}), [session])).map((line) =>
      Rollout.parse(line),
    )
  let filled = 0
  fc.assert(
    fc.property(anySession(), (session) => {
      const versions = write({}, session).map((row) => row['model_version'])
      const withDefault = write({ modelVersion: 7 }, session).map((row) => row['model_version'])
      expect(withDefault).toEqual(versions.map((version) => version ?? 7))
      filled += versions.filter((version) => version === null).length
    }),
    { numRuns: 50 },
  )
  expect(filled).toBeGreaterThan(0)
})
