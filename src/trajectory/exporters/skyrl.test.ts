import { expect } from 'vitest'
import * as z from 'zod'
import { lacksLogprob } from '../../model/sample-facts.ts'
import { describeExporter, readLines } from './exporter.contract.ts'
import { exporters } from './index.ts'

const one = <T extends z.ZodType>(schema: T): z.ZodTuple<[T]> => z.tuple([schema])

/** SkyRL's GeneratorOutput (skyrl/train/generators/base.py), of one entry. */
const Output = z.strictObject({
  prompt_token_ids: one(z.array(z.int()).min(1)),
  response_ids: one(z.array(z.int()).min(1)),
  rewards: one(z.number()),
  loss_masks: one(z.array(z.literal([0, 1]))),
  stop_reasons: one(z.string()),
  rollout_metrics: z.null(),
  rollout_logprobs: one(z.array(z.number())),
  trajectory_ids: one(z.strictObject({ instance_id: z.string(), repetition_id: z.int() })),
  is_last_step: one(z.boolean()),
  env_metrics: one(z.looseObject({ sample_id: z.string() })),
})

describeExporter('skyrl', {
  create: () => exporters.create({ kind: 'skyrl' }, {}),
  read: (file) => readLines(file).map((row) => Output.parse(row)),
  check(records, session) {
    const kept = [...session.samples()].filter((sample) => sample.reward !== undefined && !lacksLogprob(sample))
    expect(records).toHaveLength(kept.length)
    for (const [i, record] of records.entries()) {
      const row = record as z.infer<typeof Output>
      const sample = kept[i]!
      expect(row.prompt_token_ids[0]).toEqual([...sample.ids.subarray(0, sample.promptLength)])
      expect(row.response_ids[0]).toEqual([...sample.ids.subarray(sample.promptLength)])
      expect(row.loss_masks[0]).toEqual([...sample.mask.subarray(sample.promptLength)])
      expect(row.rollout_logprobs[0]).toEqual(
        [...sample.logprobs.subarray(sample.promptLength)].map((value) => (Number.isNaN(value) ? 0 : value)),
      )
      expect(row.rewards[0]).toBe(sample.reward)
      expect(row.is_last_step[0]).toBe(i === kept.length - 1)
      expect(row.trajectory_ids[0].instance_id).toBe(sample.group ?? sample.sessionId)
      expect(row.stop_reasons[0]).toBe(sample.finishReason === 'tool-calls' ? 'stop' : sample.finishReason)
    }
  },
})
