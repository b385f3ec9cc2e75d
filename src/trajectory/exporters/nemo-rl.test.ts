import { expect } from 'vitest'
import * as z from 'zod'
import { lacksLogprob } from '../../model/sample-facts.ts'
import { describeExporter, readLines } from './exporter.contract.ts'
import { exporters } from './index.ts'

/** NeMo RL's DatumSpec (nemo_rl/data/interfaces.py), with lists where it has tensors. */
const Datum = z.looseObject({
  message_log: z.array(
    z.discriminatedUnion('role', [
      z.strictObject({ role: z.literal('user'), content: z.string(), token_ids: z.array(z.int()).min(1) }),
      z.strictObject({
        role: z.literal('assistant'),
        content: z.string(),
        token_ids: z.array(z.int()).min(1),
        generation_logprobs: z.array(z.number()).min(1),
      }),
    ]),
  ),
  length: z.int(),
  loss_multiplier: z.number(),
  idx: z.int(),
  task_name: z.string(),
  extra_env_info: z.looseObject({ sample_id: z.string() }),
  reward: z.number().optional(),
})

describeExporter('nemo_rl', {
  create: () => exporters.create({ kind: 'nemo_rl', taskName: 'polar', lossMultiplier: 'one' }, {}),
  read: (file) => readLines(file).map((row) => Datum.parse(row)),
  check(records, session) {
    const samples = [...session.samples()]
    const kept = samples.filter((sample) => !lacksLogprob(sample))
    expect(records).toHaveLength(kept.length)
    for (const [i, record] of records.entries()) {
      const row = record as z.infer<typeof Datum>
      const sample = kept[i]!
      expect(row.message_log.flatMap(({ token_ids: ids }) => ids)).toEqual([...sample.ids])
      expect(row.length).toBe(sample.ids.length)
      const mask = row.message_log.flatMap(({ role, token_ids: ids }) => ids.map(() => Number(role === 'assistant')))
      expect(mask).toEqual([...sample.mask])
      const logprobs = row.message_log.flatMap((entry) => (entry.role === 'assistant' ? entry.generation_logprobs : []))
      expect(logprobs).toEqual([...sample.logprobs].filter((_, at) => sample.mask[at] === 1))
      expect(row.reward).toBe(sample.reward)
      expect(row.idx).toBe(samples.indexOf(sample))
      expect(row.extra_env_info.sample_id).toBe(sample.id)
    }
  },
})
