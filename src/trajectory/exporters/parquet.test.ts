import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readParquet } from '../../../test/support/read-parquet.ts'
import { anySession, describeExporter, writeFile } from './exporter.contract.ts'
import { parquet } from './parquet.ts'

describeExporter('parquet', {
  create: () => parquet.create({ kind: 'parquet', sharePrefixes: false }, {}),
  read: readParquet,
  check(records, session) {
    const samples = [...session.samples()]
    expect(records).toHaveLength(samples.length)
    for (const [i, sample] of samples.entries()) {
      const row = records[i] as Record<string, unknown>
      const messages = sample.messages()
      expect(row).toMatchObject({
        sample_id: sample.id,
        session_id: sample.sessionId,
        prompt_length: sample.promptLength,
        row_weight: sample.weight,
        input_ids: Array.from(sample.ids),
        loss_mask: Array.from(sample.mask),
        logprobs: Array.from(sample.logprobs),
        label: sample.label,
        shared_length: sample.shared?.length ?? null,
        mismatched_tokens: sample.mismatchedTokens,
      })
      expect(row['reward'] ?? undefined).toBe(sample.reward)
      expect(row['advantage'] ?? undefined).toBe(sample.advantage)
      expect(row['group_id'] ?? undefined).toBe(sample.group)
      expect(JSON.parse((row['reward_components'] as string | null) ?? 'null') ?? undefined).toEqual(sample.components)
      expect(JSON.parse(row['prompt_messages'] as string)).toEqual(messages.prompt)
      expect(JSON.parse(row['response_messages'] as string)).toEqual(messages.response)
      expect(JSON.parse((row['tools'] as string | null) ?? 'null')).toEqual(messages.tools)
      expect((row['spans'] as { from: number }[]).map(({ from }) => from)).toEqual(
        sample.spans().map(({ from }) => from),
      )
      expect(row['calls']).toMatchObject(
        sample.calls.map(({ turnId, from, to, isTrained, startedAt }) => {
          return { turn_id: turnId, from, to, trained: isTrained, started_at: BigInt(startedAt) }
        }),
      )
    }
  },
})

test('with sharePrefixes, rows are reassembled from the rows that contain their prefix', async () => {
  const exporter = parquet.create({ kind: 'parquet', sharePrefixes: true }, {})
  await fc.assert(
    fc.asyncProperty(anySession(), async (session) => {
      const whole = new Map<unknown, unknown[]>()
      for (const row of await readParquet(writeFile(exporter, [session]))) {
        const before = whole.get(row['shared_with'])?.slice(0, row['shared_length'] as number) ?? []
        whole.set(row['sample_id'], [...before, ...(row['input_ids'] as number[])])
      }
      expect([...whole]).toEqual([...session.samples()].map(({ id, ids }) => [id, Array.from(ids)]))
    }),
  )
})
