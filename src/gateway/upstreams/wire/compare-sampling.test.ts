import * as fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { HiddenDefault } from '../../../model/turn-sampling.ts'
import { findHiddenDefaults } from './compare-sampling.ts'

const neutral = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 }
const WIRE = {
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  minP: 'min_p',
  repetitionPenalty: 'repetition_penalty',
} as const
const OTHER = { temperature: 0.6, topP: 0.9, topK: 40, minP: 0.1, repetitionPenalty: 1.05 }

/** A server with these defaults, whose answers depend only on the parameters in force. */
function server(defaults: Record<string, number>) {
  return async (parameters: Readonly<Record<string, number>>): Promise<string> =>
    JSON.stringify(Object.values({ ...neutral, ...defaults, ...parameters }))
}

describe('findHiddenDefaults()', () => {
  test('finds exactly the parameters with a default that changes the distribution', async () => {
    await fc.assert(
      fc.asyncProperty(fc.subarray([...HiddenDefault.options]), async (names) => {
        const defaults = Object.fromEntries(names.map((name) => [WIRE[name], OTHER[name]]))
        expect(await findHiddenDefaults(server(defaults))).toEqual(names)
      }),
    )
  })

  test('is undecided if the same request has different answers, the parameters have no effect, or a request fails', async () => {
    let count = 0
    expect(await findHiddenDefaults(async () => String((count += 1)))).toBeUndefined()
    expect(await findHiddenDefaults(async () => 'same')).toBeUndefined()
    const answer = server({ top_k: 5 })
    for (let failing = 1; failing <= 12; failing++) {
      let at = 0
      const found = findHiddenDefaults(async (parameters) => ((at += 1) === failing ? undefined : answer(parameters)))
      expect([undefined, 'topK']).toContain((await found)?.join())
    }
  })
})
