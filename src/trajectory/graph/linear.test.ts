import { expect, test } from 'vitest'
import { requestReader } from '../../compose/read-request.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { Turn } from '../../model/turn.ts'
import { buildGraph } from './build-graph.ts'
import { Delegations } from './labels/find-delegation.ts'
import { Histories } from './parents/histories.ts'
import { NearestCall } from './parents/nearest-call.ts'

interface Call {
  /** The last user message, and the answer. */
  ask: string
  answer: string
  promptIds: readonly number[]
  /** Text in the arguments of a tool call in the answer. */
  tool?: string
}

function sessionOf(calls: readonly Call[]): SessionRecord {
  const turns = calls.map(({ ask, answer, promptIds, tool }, index): Turn => {
    const tools = [{ type: 'function', function: { name: 'task', parameters: { type: 'object' } } }]
    const body = { model: 'tiny', messages: [{ role: 'user', content: ask }], tools }
    const toolCalls = tool === undefined ? [] : [{ id: `c${index}`, name: 'task', arguments: JSON.stringify({ tool }) }]
    return {
      id: `turn_${index}`,
      sessionId: 'ses_1',
      index,
      dialect: 'openai-chat',
      startedAt: 1000 + 10 * index,
      endedAt: 1005 + 10 * index,
      model: 'tiny',
      stream: false,
      request: JSON.stringify(body),
      headers: {},
      forced: {},
      delivery: 'delivered',
      response: {
        model: 'tiny',
        grade: 'exact',
        promptIds: Int32Array.from(promptIds),
        usage: { inputTokens: 1, outputTokens: 1 },
        choices: [
          {
            index: 0,
            ids: Int32Array.of(7, index),
            logprobs: Float32Array.of(0, 0),
            finishReason: 'stop',
            message: { role: 'assistant', content: [{ type: 'text', text: answer }], toolCalls },
          },
        ],
      },
    } as unknown as Turn
  })
  return { id: 'ses_1', createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
}

/** Returns the mean number of times that a request is parsed to build the graph of a session. */
function readsPerCall(calls: readonly Call[]): number {
  let reads = 0
  const reader = {
    ...requestReader,
    readRequest: (turn: Turn) => {
      reads += 1
      return requestReader.readRequest(turn)
    },
  }
  expect(buildGraph(sessionOf(calls), reader).nodes).toHaveLength(calls.length)
  return reads / calls.length
}

const numbers = (count: number): number[] => Array.from({ length: count }, (_, i) => i)

test.each<[string, (index: number) => Call]>([
  ['unrelated', (i) => ({ ask: `question ${i}`, answer: `a long enough answer ${i}`, promptIds: [i, 1, 2, 3] })],
  ['of unequal length', (i) => ({ ask: `question ${i}`, answer: `answer ${i}`, promptIds: [i, ...numbers(i % 50)] })],
  ['without answers', (i) => ({ ask: `question ${i}`, answer: '', promptIds: [i, 1, 2, 3] })],
  ['repeated', () => ({ ask: 'the same question', answer: 'the same answer', promptIds: [1, 2, 3] })],
  [
    'sub-agents',
    (i) => ({
      ask: `the task of number ${i}`,
      answer: `done ${i}`,
      promptIds: [i, 1],
      tool: `the task of number ${i + 1}`,
    }),
  ],
])('requests of calls (%s) are parsed a bounded number of times, independent of the number of calls', (_, toCall) => {
  const few = readsPerCall(numbers(100).map(toCall))
  const many = readsPerCall(numbers(400).map(toCall))
  expect(few).toBeLessThan(4)
  expect(many).toBeLessThan(few + 1)
})

test('NearestCall compares a bounded number of tokens for each call, independent of the other calls', () => {
  const stepsPerCall = (count: number): number => {
    const nearest = new NearestCall()
    for (const index of numbers(count)) {
      // The first token of every call is unique; the following tokens are equal.
      const promptIds = Int32Array.from([index % 1000, index, ...numbers(60)])
      nearest.find(promptIds)
      nearest.add({ promptIds, ids: Int32Array.of(index) })
    }
    return nearest.steps / count
  }
  expect(stepsPerCall(4000)).toBeLessThan(2 * stepsPerCall(500) + 10)
})

test('Delegations.find() stops at the limit of characters and returns nothing from then on', () => {
  const task = 'a task that is found by equality'
  const calls = numbers(40).map((i): Call => ({ ask: task, answer: 'done', promptIds: [i], tool: task }))
  const { nodes } = buildGraph(sessionOf(calls), requestReader)
  const conversations = nodes.map((node) => [node])
  const findAll = (characters?: number) => {
    const delegations = new Delegations(conversations, new Histories(requestReader), characters)
    return conversations.filter((conversation) => delegations.find(conversation).asked !== undefined).length
  }
  expect(findAll()).toBe(39)
  expect(findAll(60)).toBeLessThan(39)
  expect(findAll(0)).toBe(0)
})
