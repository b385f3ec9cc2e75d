import { expect, test } from 'vitest'
import { chatReader, says, toyGraph, user, type ToyCall } from '../../test/support/toy-calls.ts'
import type { SampleMessages } from '../model/sample.ts'
import { chainParts } from './builders/builder.ts'
import { chatMessageOf, messagesOf } from './sample-messages.ts'

/** Returns the messages of one row that contains all calls. */
function messagesOfAll(calls: readonly ToyCall[]): SampleMessages {
  const { nodes } = toyGraph(calls)
  return messagesOf({ promptParts: 1, parts: chainParts(nodes, () => true) }, chatReader)
}

const hi = user('a')
const done = chatMessageOf(says('done'))

test('a joined answer at the start of a row is not confused with a later message of the same text', () => {
  const { prompt, response, answers } = messagesOfAll([
    // The record of the call that sampled "[" is lost.
    { id: 'resumed', messages: [hi, says('[')], prompt: 'P[', sampled: '<a>$', answer: says('', { reasoning: 'a' }) },
    {
      id: 'last',
      messages: [hi, says('[<a>'), hi, says(''), hi],
      prompt: 'P[<a>$Q$R',
      answer: says('done'),
    },
  ])
  expect(prompt).toEqual([hi])
  expect(response).toEqual([chatMessageOf(says('[<a>')), hi, chatMessageOf(says('')), hi, done])
  expect(answers).toEqual([0, 4])
})

test('a joined answer within a row keeps the empty reasoning that the harness sent', () => {
  const thought = says('', { reasoning: '' })
  const { response, answers } = messagesOfAll([
    { id: 'first', messages: [hi], prompt: 'P', sampled: 'x$', answer: says('x') },
    // The record of the call that sampled "<" is lost.
    { id: 'resumed', messages: [hi, says('x'), hi, thought], prompt: 'Px$Q<', sampled: '$', answer: says('') },
    { id: 'last', messages: [hi, says('x'), hi, thought, hi], prompt: 'Px$Q<$R', answer: says('done') },
  ])
  expect(response).toEqual([chatMessageOf(says('x')), hi, chatMessageOf(thought), hi, done])
  expect(answers).toEqual([0, 2, 4])
})

test('two answers that the harness joined share one message, even if a later message repeats the second', () => {
  const { response, answers } = messagesOfAll([
    {
      id: 'cut',
      messages: [hi],
      prompt: 'P',
      sampled: '<',
      answer: says('', { reasoning: '' }),
      choice: { finishReason: 'cut' },
    },
    // The harness omits reasoning, so the joined message is empty.
    { id: 'resumed', messages: [hi, says('')], prompt: 'P<', sampled: 'ab$', answer: says('ab') },
    { id: 'last', messages: [hi, says(''), hi, says('ab'), hi], prompt: 'P<ab$Qab$R', answer: says('done') },
  ])
  expect(response).toEqual([chatMessageOf(says('')), hi, chatMessageOf(says('ab')), hi, done])
  expect(answers).toEqual([0, 0, 4])
})
