import { expect, test } from 'vitest'
import * as z from 'zod'
import fc from 'fast-check'
import { lacksLogprob } from '../../model/sample-facts.ts'
import type { Turn } from '../../model/turn.ts'
import { anySession, describeExporter, readLines, writeFile } from './exporter.contract.ts'
import { exporters } from './index.ts'

/** prime-rl's TrainingSample (src/prime_rl/transports/rollouts/types.py), the fields that we write. */
const TrainingSample = z
  .strictObject({
    token_ids: z.array(z.int()),
    mask: z.array(z.boolean()),
    logprobs: z.array(z.number()),
    temperatures: z.array(z.number()),
    env_name: z.string(),
    advantages: z.array(z.number()).nullable(),
  })
  .refine(({ token_ids: ids, mask, logprobs }) => ids.length === mask.length && ids.length === logprobs.length)
  // prime-rl's trainer rejects a row with a shorter or empty list.
  .refine(({ token_ids: ids, temperatures }) => ids.length === temperatures.length)

/** Read from the recorded request, not from the sample. */
function temperatureOf({ forced, request, sampling }: Turn): number {
  const sent = forced['temperature'] ?? (JSON.parse(request) as { temperature?: number }).temperature
  return (sent ?? sampling?.defaults.temperature ?? 1) as number
}

describeExporter('prime_rl', {
  create: () => exporters.create({ kind: 'prime_rl', envName: 'polar', layout: 'object' }, {}),
  read: (file) => readLines(file).map((row) => TrainingSample.parse(row)),
  check(records, session) {
    const kept = [...session.samples()].filter((sample) => !lacksLogprob(sample))
    expect(records).toHaveLength(kept.length)
    for (const [i, record] of records.entries()) {
      const row = record as z.infer<typeof TrainingSample>
      const sample = kept[i]!
      expect(row.token_ids).toEqual([...sample.ids])
      expect(row.mask).toEqual([...sample.mask].map(Boolean))
      expect(row.logprobs).toEqual([...sample.logprobs].map((value) => (Number.isNaN(value) ? 0 : value)))
      const { advantage } = sample
      expect(row.advantages).toEqual(
        advantage === undefined ? null : [...sample.mask].map((trained) => (trained === 1 ? advantage : 0)),
      )
      const trained = sample.calls.filter(({ isTrained }) => isTrained)
      for (const { turnId, from } of trained) {
        const turn = session.built.session.turns.find(({ id }) => id === turnId)!
        expect(row.temperatures[from]).toBe(temperatureOf(turn))
      }
    }
  },
})

test('the fields have the positions of prime-rl’s struct', () => {
  const byName = exporters.create({ kind: 'prime_rl', envName: 'e', layout: 'object', temperature: 1 }, {})
  const byPlace = exporters.create({ kind: 'prime_rl', envName: 'e', layout: 'array', temperature: 1 }, {})
  fc.assert(
    fc.property(anySession(), (session) => {
      const named = readLines(writeFile(byName, [session])) as z.infer<typeof TrainingSample>[]
      const placed = readLines(writeFile(byPlace, [session])) as unknown[][]
      expect(placed.map((row) => [...row.slice(0, 5), row[12] ?? null])).toEqual(
        named.map((row) => [row.token_ids, row.mask, row.logprobs, row.temperatures, row.env_name, row.advantages]),
      )
      for (const row of placed) expect(row.slice(5, 12).every((field) => field === null)).toBe(true)
      for (const row of named) expect(row.temperatures).toHaveLength(row.token_ids.length)
    }),
    { numRuns: 30 },
  )
})
