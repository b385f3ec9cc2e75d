import { describe, expect, test } from 'vitest'
import type { Capabilities } from '../upstream.ts'
import { findLogprobs, findSampling } from './probe.ts'

describe('findSampling()', () => {
  test('is good with temperature 1 and no filter', () => {
    for (const top_k of [0, -1, undefined]) {
      const [finding] = findSampling({ temperature: 1, top_p: 1, top_k, min_p: 0 }, 'advice')
      expect(finding).toMatchObject({ verdict: 'good' })
    }
    expect(findSampling({ ofModel: false }, 'advice')).toMatchObject([{ verdict: 'good' }])
  })

  test('lists the defaults that change the distribution', () => {
    // The defaults that llama.cpp reports.
    const defaults = { temperature: 0.800000011920929, top_p: 0.949999988079071, top_k: 40, min_p: 0.05000000074505806 }
    expect(findSampling(defaults, 'Do this.')).toMatchObject([
      {
        verdict: 'limited',
        evidence: 'by default temperature 0.8, top_k 40, top_p 0.95, min_p 0.05',
        meaning: expect.stringContaining('Do this.'),
      },
    ])
    expect(findSampling({ ofModel: true }, '')[0]?.evidence).toContain('generation_config')
  })

  test('returns the defaults that the engine reports', () => {
    const [found] = findSampling({ temperature: 0.600000023841858, top_p: 0.95, top_k: 20, min_p: null }, '')
    expect(found?.capability).toEqual({ defaultSampling: { temperature: 0.6, topP: 0.95, topK: 20 } })
    expect(findSampling({ ofModel: true }, '')[0]?.capability).toEqual({ defaultSampling: {} })
  })

  test('is empty when the defaults are unknown', () => {
    expect(findSampling(undefined, 'advice')).toEqual([])
  })
})

describe('findLogprobs()', () => {
  const assumed = { logprobs: 'raw' } as Capabilities
  const find = async (one: number, half: number, topOne: number): Promise<unknown> => {
    const found = await findLogprobs({ best: one }, { best: half }, async () => ({ best: topOne }), { assumed })
    return found.capability?.logprobs
  }

  test('distinguishes raw, tempered and processed log probabilities', async () => {
    expect(await find(-1, -1, -1)).toBe('raw')
    expect(await find(-1, -0.3, -1)).toBe('tempered')
    expect(await find(-1, -0.3, 0)).toBe('processed')
  })
})
