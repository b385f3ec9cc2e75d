import { expect } from 'vitest'
import * as z from 'zod'
import { readParquet } from '../../../test/support/read-parquet.ts'
import { describeExporter } from './exporter.contract.ts'
import { verl } from './verl.ts'

/** verl's AgentLoopOutput, as far as we fill it, and the columns of its dataset. */
const Row = z
  .strictObject({
    data_source: z.string(),
    agent_name: z.string(),
    prompt: z.array(z.strictObject({ role: z.string(), content: z.string() })),
    ability: z.null().optional(),
    reward_model: z.strictObject({ style: z.string(), ground_truth: z.null().optional() }),
    extra_info: z.looseObject({ index: z.bigint(), need_tools_kwargs: z.boolean() }),
    prompt_ids: z.array(z.int()),
    response_ids: z.array(z.int()),
    response_mask: z.array(z.literal([0, 1])),
    response_logprobs: z.array(z.number()).nullish(),
    reward_score: z.number().nullish(),
    num_turns: z.int().positive(),
    metrics: z.strictObject({ generate_sequences: z.number() }),
    extra_fields: z.looseObject({ sample_id: z.string(), metadata: z.string() }),
  })
  .refine(({ response_ids, response_mask }) => response_ids.length === response_mask.length)

describeExporter('verl', {
  create: () => verl.create({ kind: 'verl' }, {}),
  read: async (file) => (await readParquet(file)).map((row) => Row.parse(row)),
  check(records, session) {
    const samples = [...session.samples()]
    expect(records).toHaveLength(samples.length)
    for (const [i, sample] of samples.entries()) {
      const row = records[i] as z.infer<typeof Row>
      const prompt = sample.promptLength
      expect(row).toMatchObject({
        prompt_ids: Array.from(sample.ids.subarray(0, prompt)),
        response_ids: Array.from(sample.ids.subarray(prompt)),
        response_mask: Array.from(sample.mask.subarray(prompt)),
        extra_info: { index: BigInt(i), session_id: sample.sessionId },
        extra_fields: { sample_id: sample.id, row_weight: sample.weight },
      })
      expect(row.reward_score ?? undefined).toBe(sample.reward)
      const isTrained = (_: unknown, at: number): boolean => sample.mask[prompt + at] === 1
      const logprobs = Array.from(sample.logprobs.subarray(prompt)).filter(isTrained)
      if (logprobs.some(Number.isNaN)) expect(row.response_logprobs ?? null).toBeNull()
      else {
        expect(row.response_logprobs?.filter(isTrained)).toEqual(logprobs)
        expect(row.response_logprobs?.every((value, at) => isTrained(value, at) || value === 0)).toBe(true)
      }
      expect((JSON.parse(row.extra_fields.metadata) as { messages: unknown }).messages).toEqual(sample.messages())
    }
  },
})
