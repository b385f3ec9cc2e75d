import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { Message } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { CALL_BYTES, ConversationTree } from './conversation-tree.ts'

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

test('the tokens of each conversation are stored once, independent of the number of its calls', () => {
  const tree = new ConversationTree(1024 * 1024)
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

/** One agent of a session: each call repeats the conversation and adds an answer and a message. */
class Agent {
  readonly name: string
  messages: Message[]
  ids: number[]
  calls = 0

  constructor(name: string) {
    this.name = name
    this.messages = [says('user', name)]
    this.ids = [...Buffer.from(name)]
  }

  get turnId(): string {
    return `${this.name}-${this.calls}`
  }

  /** The memory that the tree needs for this agent to continue. */
  get bytes(): number {
    return this.calls === 0 ? 0 : 4 * this.ids.length + CALL_BYTES + 2 * this.turnId.length
  }

  call(tree: ConversationTree, promptLength: number): void {
    this.ids.push(...Array.from({ length: promptLength }, (_, i) => i))
    this.calls += 1
    const sampled = [7, 7, this.calls]
    tree.add(this.turnId, requestOf(this.messages), responseOf(this.ids, sampled, this.turnId))
    this.messages = [...this.messages, says('assistant', this.turnId), says('user', 'go on')]
    this.ids = [...this.ids, ...sampled]
  }
}

test('every conversation of a session continues as long as the last calls of all fit into the memory', () => {
  const step = fc.record({ agent: fc.nat({ max: 5 }), length: fc.integer({ min: 0, max: 400 }) })
  const seen = new Set<string>()
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80 }), fc.integer({ min: 0, max: 24_000 }), (steps, limit) => {
      const tree = new ConversationTree(limit)
      const agents = Array.from({ length: 6 }, (_, i) => new Agent(`agent${i}`))
      let isFitting = true
      for (const { agent: at, length } of steps) {
        const agent = agents[at] as Agent
        const found = tree.find(requestOf(agent.messages))
        if (agent.calls === 0) {
          expect(found).toEqual({
            fork: tree.bytes === 0 && agents.every(({ calls }) => calls === 0) ? 'first-call' : 'new-conversation',
          })
        } else if ('fork' in found) {
          seen.add(found.fork)
          expect(found.fork).toBe('forgotten')
          expect(isFitting).toBe(false)
        } else {
          seen.add('continued')
          expect(found.node.turnId).toBe(agent.turnId)
          expect([...found.node.promptIds, ...found.node.sampledIds]).toEqual(agent.ids)
        }
        agent.call(tree, length)
        expect(tree.bytes).toBeLessThanOrEqual(limit)
        isFitting &&= agents.reduce((sum, { bytes }) => sum + bytes, 0) <= limit
      }
    }),
    { numRuns: 300 },
  )
  expect([...seen].toSorted()).toEqual(['continued', 'forgotten'])
})

test('a sub-agent with hundreds of calls does not evict the main conversation', () => {
  const tree = new ConversationTree(64 * 1024)
  const [main, sub] = [new Agent('main'), new Agent('sub')]
  main.call(tree, 100)
  for (let i = 0; i < 300; i++) sub.call(tree, 20)
  expect(tree.find(requestOf(main.messages))).toMatchObject({ node: { turnId: 'main-1' } })
  expect(tree.find(requestOf(sub.messages))).toMatchObject({ node: { turnId: 'sub-300' } })
})

test('a call continues if its ids are exact, also without a log probability of a token', () => {
  const asked = requestOf([says('user', 'one')])
  const next = requestOf([...asked.messages, says('assistant', 'a'), says('user', 'two')])
  const find = (gradeReasons: string[]) => {
    const tree = new ConversationTree(1024 * 1024)
    tree.add('t1', asked, { ...responseOf([1, 2], [3], 'a'), grade: 'inferred', gradeReasons })
    return tree.find(next)
  }
  expect(find(['choice 0: a logprob is missing'])).toMatchObject({ node: { turnId: 't1' } })
  const counts = 'usage counts 3 prompt tokens, ids are 2'
  expect(find(['choice 0: a logprob is missing', counts])).toEqual({ fork: 'not-exact' })
  expect(find([])).toEqual({ fork: 'not-exact' })
})
