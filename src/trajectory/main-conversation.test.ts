import { expect, test } from 'vitest'
import { says, toyGraph, toyReader, user } from '../../test/support/toy-calls.ts'
import { mainConversation } from './main-conversation.ts'

test('mainConversation() is the last prompt and its answer, whether it may be trained or not', () => {
  const graph = toyGraph([
    { id: 'one', messages: [user('Hi')], answer: says('Hello') },
    {
      id: 'two',
      messages: [user('Hi'), says('Hello'), user('Go on')],
      answer: says('Done'),
      choice: { ids: new Int32Array(), logprobs: new Float32Array() },
    },
  ])
  expect(mainConversation(graph, toyReader).map(({ role }) => role)).toEqual(['user', 'assistant', 'user', 'assistant'])
  expect(mainConversation(graph, toyReader).at(-1)).toEqual({ role: 'assistant', content: 'Done' })
})

test('mainConversation() is empty where nothing was said', () => {
  expect(mainConversation(toyGraph([]), toyReader)).toEqual([])
})
