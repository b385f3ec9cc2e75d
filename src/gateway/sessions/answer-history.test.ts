import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { AssistantMessage, Message } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { isSameJson, AnswerHistory } from './answer-history.ts'

const LIMIT_BYTES = 64 * 1024

function requestOf(message: AssistantMessage): TurnRequest {
  return {
    dialect: 'openai-chat',
    model: 'm',
    messages: [message],
    tools: [],
    sampling: { n: 1 },
    stream: false,
    streamUsage: false,
    logprobs: false,
    wire: { api: 'openai-chat', text: '{}', body: {} },
  }
}

function callOf(args: string): AssistantMessage {
  return { role: 'assistant', content: [], toolCalls: [{ id: 'c1', name: 'f', arguments: args }] }
}

function answered(message: AssistantMessage, id = 'r1'): TurnResponse {
  const choice = {
    index: 0,
    message,
    finishReason: 'tool-calls' as const,
    ids: new Int32Array(),
    logprobs: new Float32Array(),
  }
  return {
    id,
    model: 'm',
    created: 1,
    promptIds: new Int32Array(),
    choices: [choice],
    grade: 'text-only',
    gradeReasons: [],
  }
}

describe('AnswerHistory', () => {
  test('restore() restores the sampled arguments, independent of how the harness printed them', () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue(), { noNullPrototype: true }), (args) => {
        const memory = new AnswerHistory(LIMIT_BYTES)
        const sampled = JSON.stringify(args, null, 1)
        memory.remember(requestOf(callOf('')), answered(callOf(sampled)))
        const echoed = requestOf(callOf(JSON.stringify(args)))
        expect(memory.restore(echoed).messages).toEqual([callOf(sampled)])
      }),
    )
  })

  test('restore() restores invalid arguments, independent of how the harness changed them', () => {
    const memory = new AnswerHistory(LIMIT_BYTES)
    memory.remember(requestOf(callOf('')), answered(callOf('{"a": "ec')))
    expect(memory.restore(requestOf(callOf('{}'))).messages).toEqual([callOf('{"a": "ec')])
    const renamed = { ...callOf(''), toolCalls: [{ id: 'c1', name: 'invalid', arguments: '{"tool":"f"}' }] }
    expect(memory.restore(requestOf(renamed)).messages).toEqual([callOf('{"a": "ec')])
  })

  test.each(['[1, 2]', '"ls"', '7', 'null'])('restore() restores arguments that are no object: %s', (sampled) => {
    const memory = new AnswerHistory(LIMIT_BYTES)
    memory.remember(requestOf(callOf('')), answered(callOf(sampled)))
    // An API whose arguments are an object has no other form for them.
    expect(memory.restore(requestOf(callOf('{}'))).messages).toEqual([callOf(sampled)])
  })

  test('restore() does not change a call with other arguments or an unknown id', () => {
    const memory = new AnswerHistory(LIMIT_BYTES)
    memory.remember(requestOf(callOf('')), answered(callOf('{"a": 1.0}')))
    const edited = requestOf(callOf('{"a":2}'))
    expect(memory.restore(edited)).toBe(edited)
    const broken = requestOf(callOf('{"a":'))
    expect(memory.restore(broken)).toBe(broken)
    expect(new AnswerHistory(LIMIT_BYTES).restore(requestOf(callOf('{}'))).messages).toEqual([callOf('{}')])
  })

  test('recall() returns the last answer of a conversation after any number of calls of another one', () => {
    const memory = new AnswerHistory(LIMIT_BYTES)
    memory.remember(requestOf(callOf('{}')), answered(callOf('{}'), 'main'))
    let messages: readonly Message[] = [callOf('{}')]
    for (let i = 0; i < 300; i++) {
      memory.remember({ ...requestOf(callOf('')), messages: [...messages] }, answered(callOf('{}'), `r${i}`))
      messages = memory.recall(`r${i}`) ?? []
      expect(messages).toHaveLength(i + 2)
    }
    expect(memory.recall('main')).toEqual([callOf('{}'), callOf('{}')])
    expect(memory.recall('r0')).toBeUndefined()
  })

  test('the memory is bounded in bytes, also for large arguments', () => {
    const memory = new AnswerHistory(LIMIT_BYTES)
    for (let i = 0; i < 50; i++) {
      const large = { ...callOf(''), toolCalls: [{ id: `c${i}`, name: 'f', arguments: `"${'x'.repeat(4000)}"` }] }
      memory.remember(requestOf(large), answered(large, `r${i}`))
      expect(memory.bytes).toBeLessThanOrEqual(LIMIT_BYTES)
    }
    expect(memory.recall('r49')).toHaveLength(2)
    expect(memory.recall('r0')).toBeUndefined()
  })

  test('isSameJson() ignores the notation of JSON and nothing else', () => {
    expect(isSameJson('{"a":1.0,"b":"\\u0041"}', ' { "b" : "A", "a" : 1 } ')).toBe(true)
    expect(isSameJson('{"a":[1,2]}', '{"a":[2,1]}')).toBe(false)
    expect(isSameJson('{', '{')).toBe(false)
  })
})
