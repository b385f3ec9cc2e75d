import { expect } from 'vitest'
import * as z from 'zod'
import { describeExporter, jsonNumbers, readLines } from './exporter.contract.ts'
import { slime } from './slime.ts'

/** The fields of slime's dataclass that we fill; `from_dict` makes attributes of any others, so there must be none. */
const SlimeSample = z
  .strictObject({
    group_index: z.int().nullable(),
    index: z.int(),
    rollout_id: z.int(),
    session_id: z.string(),
    prompt: z.array(z.looseObject({ role: z.string() })),
    tokens: z.array(z.int()),
    response_length: z.int().nonnegative(),
    reward: z.number().nullable(),
    loss_mask: z.array(z.literal([0, 1])),
    rollout_log_probs: z.array(z.number()).nullable(),
    weight_versions: z.array(z.string()),
    status: z.enum(['completed', 'truncated', 'aborted', 'failed']),
    metadata: z.record(z.string(), z.unknown()),
  })
  .refine(({ loss_mask, response_length }) => loss_mask.length === response_length)
  .refine(({ rollout_log_probs: l, response_length }) => l === null || l.length === response_length)

describeExporter('slime', {
  create: () => slime.create({ kind: 'slime' }, {}),
  read: (file) => readLines(file).map((line) => SlimeSample.parse(line)),
  check(records, session) {
    const read = records as z.infer<typeof SlimeSample>[]
    const samples = [...session.samples()]
    expect(read).toHaveLength(samples.length)
    for (const [i, sample] of samples.entries()) {
      const record = read[i] as z.infer<typeof SlimeSample>
      const prompt = sample.promptLength
      expect(record).toMatchObject({
        index: i,
        rollout_id: 0,
        tokens: jsonNumbers(sample.ids),
        response_length: sample.ids.length - prompt,
        loss_mask: jsonNumbers(sample.mask.subarray(prompt)),
        reward: sample.reward ?? null,
        prompt: sample.messages().prompt,
        metadata: { sample_id: sample.id, weight: sample.weight, response_messages: sample.messages().response },
      })
      const trained = sample.logprobs.subarray(prompt).filter((_, at) => sample.mask[prompt + at] === 1)
      if (trained.some(Number.isNaN)) expect(record.rollout_log_probs).toBeNull()
      else expect(record.rollout_log_probs?.filter((_, at) => record.loss_mask[at] === 1)).toEqual(jsonNumbers(trained))
      expect((record.group_index === null) === (sample.group === undefined)).toBe(true)
    }
  },
})
