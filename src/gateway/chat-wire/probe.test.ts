import { describe, expect, test } from 'vitest'
import { findSampling } from './probe.ts'

describe('findSampling()', () => {
  test('is content with temperature 1 and no filter', () => {
    for (const top_k of [0, -1, undefined]) {
      const [finding] = findSampling({ temperature: 1, top_p: 1, top_k, min_p: 0 }, 'advice')
      expect(finding).toMatchObject({ verdict: 'good' })
    }
    expect(findSampling({ ofModel: false }, 'advice')).toMatchObject([{ verdict: 'good' }])
  })

  test('names what would cut the distribution of a call that says nothing', () => {
    // As llama.cpp reports its own.
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

  test('says nothing where nothing is known', () => {
    expect(findSampling(undefined, 'advice')).toEqual([])
  })
})
