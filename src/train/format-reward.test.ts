import { expect, test } from 'vitest'
import type { TranscriptEntry } from '../model/transcript.ts'
import { gradeFormat } from './format-reward.ts'

const ask: TranscriptEntry = { source: 'claimed', message: { role: 'user', content: 'docs' } }
const text = (content: string): TranscriptEntry => ({ source: 'sampled', message: { role: 'assistant', content } })

test.each<[string, TranscriptEntry[], number]>([
  ['nothing was sampled', [ask], 0],
  ['other text', [ask, text('The word is docs')], 0],
  ['the answer after other text', [ask, text('Yes: [docs]')], 0],
  ['the beginning of the answer', [ask, text('[do')], 3 / 7],
  ['the answer for another word', [ask, text('[music]')], 1 / 7],
  ['the answer and more', [ask, text('[docs] and')], 6 / 7],
  ['the answer', [ask, text('[docs]')], 1],
])('the reward of %s', (_, transcript, reward) => {
  expect(gradeFormat(transcript, 'docs')).toBeCloseTo(reward, 10)
})
