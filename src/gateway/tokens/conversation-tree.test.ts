import { expect, test } from 'vitest'
import type { Message } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { ConversationTree } from './conversation-tree.ts'

function requestOf(messages: Message[]): TurnRequest {
  const wire = { api: 'test', text: '{}', body: {} }
  const wishes = { sampling: { n: 1 }, stream: true, streamUsage: false, logprobs: false }
  return { dialect: 'test', model: 'm', messages, tools: [], ...wishes, wire }
}

function says(role: 'user' | 'assistant', words: string): Message {
  const content = [{ type: 'text' as const, text: words }]
  return role === 'assistant' ? { role, content, toolCalls: [] } : { role, content }
}

function responseOf(promptIds: number[], ids: number[], words: string): TurnResponse {
  const message = { role: 'assistant' as const, content: [{ type: 'text' as const, text: words }], toolCalls: [] }
  const choice = { index: 0, message, finishReason: 'stop' as const, ids: Int32Array.from(ids) }
  return {
    id: 'r',
    model: 'm',
    created: 1,
    promptIds: Int32Array.from(promptIds),
    choices: [{ ...choice, logprobs: new Float32Array(ids.length) }],
    grade: 'exact',
    gradeReasons: [],
  }
}

test('what a conversation read and wrote is kept once, whatever the number of its calls, and beside it another one', () => {
  const tree = new ConversationTree()
  const ask = says('user', 'one')
  const [first, second] = [[ask], [ask, says('assistant', 'a'), says('user', 'two')]]
  const third = [...second, says('assistant', 'b'), says('user', 'three')]
  tree.add('t1', requestOf(first), responseOf([1, 2], [3], 'a'))
  tree.add('other', requestOf([says('user', 'else')]), responseOf([9, 9, 9], [9], 'z'))
  tree.add('t2', requestOf(second), responseOf([1, 2, 3, 4], [5], 'b'))
  tree.add('t3', requestOf(third), responseOf([1, 2, 3, 4, 5, 6], [7], 'c'))
  const found = [
    [...first, says('assistant', 'a'), says('user', 'x')],
    [...second, says('assistant', 'b'), says('user', 'x')],
    [...third, says('assistant', 'c'), says('user', 'x')],
    [says('user', 'else'), says('assistant', 'z'), says('user', 'x')],
  ].map((messages) => {
    const node = tree.find(requestOf(messages))
    if ('fork' in node) throw new Error(node.fork)
    return node.node
  })
  expect(found.map(({ promptIds, sampledIds }) => [...promptIds, ...sampledIds].join(''))).toEqual([
    '123',
    '12345',
    '1234567',
    '9999',
  ])
  expect(new Set(found.slice(0, 3).map(({ promptIds }) => promptIds.buffer)).size).toBe(1)
  expect(found[0]?.sampledIds.buffer).toBe(found[2]?.promptIds.buffer)
})
