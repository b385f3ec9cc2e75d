import { expect } from 'vitest'
import { Trace } from '../../model/trajectory.ts'
import { describeExporter, jsonNumbers, readLines } from './exporter.contract.ts'
import { jsonl } from './jsonl.ts'

describeExporter('jsonl', {
  create: () => jsonl.create({ kind: 'jsonl' }, {}),
  read: (file) => readLines(file).map((line) => Trace.parse(line)),
  check(records, session) {
    const samples = [...session.samples()]
    expect(records).toHaveLength(samples.length)
    for (const [i, sample] of samples.entries()) {
      const { prompt, response, tools } = sample.messages()
      const logprobs = Array.from(sample.logprobs.subarray(sample.promptLength), (logprob, at) =>
        sample.mask[sample.promptLength + at] === 1 ? logprob : 0,
      )
      expect(records[i]).toMatchObject({
        prompt_ids: jsonNumbers(sample.ids.subarray(0, sample.promptLength)),
        response_ids: jsonNumbers(sample.ids.subarray(sample.promptLength)),
        loss_mask: jsonNumbers(sample.mask.subarray(sample.promptLength)),
        // A trained token without a log probability removes the whole list.
        response_logprobs: logprobs.includes(NaN) ? null : logprobs,
        reward: sample.reward ?? null,
        prompt_messages: prompt,
        response_messages: response,
        tools,
        metadata: {
          sample_id: sample.id,
          weight: sample.weight,
          calls: sample.calls.map(({ turnId }) => ({ turn_id: turnId })),
        },
      })
    }
  },
})
