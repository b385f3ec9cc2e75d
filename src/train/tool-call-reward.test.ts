import { expect, test } from 'vitest'
import type { TranscriptEntry } from '../model/transcript.ts'
import { gradeToolCall, toolCallText } from './tool-call-reward.ts'

const ask: TranscriptEntry = { source: 'claimed', message: { role: 'user', content: 'List docs' } }
const result: TranscriptEntry = { source: 'claimed', message: { role: 'tool', content: 'a.txt' } }
const text = (content: string): TranscriptEntry => ({ source: 'sampled', message: { role: 'assistant', content } })
const call = (name: string, input: string): TranscriptEntry => ({
  source: 'sampled',
  message: { role: 'assistant', tool_calls: [{ id: '1', type: 'function', function: { name, arguments: input } }] },
})
const right = call('ls', '{"path": "docs"}')

const asked = toolCallText('docs')
const share = (beginning: string) => (0.6 * beginning.length) / asked.length

test.each<[string, TranscriptEntry[], number]>([
  ['nothing was sampled', [ask], 0],
  ['other text', [ask, text('The folder docs is')], 0],
  ['the call after other text', [ask, text(`Yes: ${asked}`)], 0],
  ['the beginning of the call', [ask, text('<tool_call>\nls')], share('<tool_call>\n')],
  ['another name', [ask, text('<tool_call>\n{"name": "docs"}')], share('<tool_call>\n{"name": "')],
  ['the call, but pi did not execute it', [ask, text(asked)], 0.6],
  ['a call of another tool', [ask, call('find', '{}'), result, text('Done.')], share('<tool_call>\n{"name": "')],
  ['a cut call', [ask, call('ls', '{"pa'), result], share('<tool_call>\n{"name": "ls", "arguments": {"pa')],
  ['a call with another path', [ask, call('ls', '{"path": "src"}'), result, text('Done.')], 0.7],
  ['a call without a result', [ask, right], 0.6],
  ['the call again', [ask, right, result, right, result, text('Done.')], 0.9],
  ['the call and no answer', [ask, right, result], 0.9],
  ['the call and an answer', [ask, right, result, text('a.txt')], 1],
])('the reward of %s', (_, transcript, reward) => {
  expect(gradeToolCall(transcript, 'docs')).toBeCloseTo(reward, 10)
})
