import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { AssistantMessage } from '../model/message.ts'
import type { TurnRequest, TurnResponse } from '../model/turn.ts'
import { isSameJson, SessionMemory } from './session-memory.ts'

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

describe('SessionMemory', () => {
  test('gives a call back its sampled text, however the harness printed it', () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue(), { noNullPrototype: true }), (args) => {
        const memory = new SessionMemory()
        const sampled = JSON.stringify(args, null, 1)
        memory.remember(requestOf(callOf('')), answered(callOf(sampled)))
        const echoed = requestOf(callOf(JSON.stringify(args)))
        expect(memory.restore(echoed).messages).toEqual([callOf(sampled)])
      }),
    )
  })

  test('gives broken arguments back, whatever the harness made of them', () => {
    const memory = new SessionMemory()
    memory.remember(requestOf(callOf('')), answered(callOf('{"a": "ec')))
    expect(memory.restore(requestOf(callOf('{}'))).messages).toEqual([callOf('{"a": "ec')])
    const renamed = { ...callOf(''), toolCalls: [{ id: 'c1', name: 'invalid', arguments: '{"tool":"f"}' }] }
    expect(memory.restore(requestOf(renamed)).messages).toEqual([callOf('{"a": "ec')])
  })

  test('leaves a call alone that says something else, or that nobody remembers', () => {
    const memory = new SessionMemory()
    memory.remember(requestOf(callOf('')), answered(callOf('{"a": 1.0}')))
    const edited = requestOf(callOf('{"a":2}'))
    expect(memory.restore(edited)).toBe(edited)
    const broken = requestOf(callOf('{"a":'))
    expect(memory.restore(broken)).toBe(broken)
    expect(new SessionMemory().restore(requestOf(callOf('{}'))).messages).toEqual([callOf('{}')])
  })

  test('goes back to the last answers, and forgets the oldest', () => {
    const memory = new SessionMemory()
    for (let i = 0; i < 100; i++) memory.remember(requestOf(callOf('{}')), answered(callOf('{}'), `r${i}`))
    expect(memory.recall('r99')).toEqual([callOf('{}'), callOf('{}')])
    expect(memory.recall('r0')).toBeUndefined()
  })

  test('isSameJson() sees through spelling and nothing else', () => {
    expect(isSameJson('{"a":1.0,"b":"\\u0041"}', ' { "b" : "A", "a" : 1 } ')).toBe(true)
    expect(isSameJson('{"a":[1,2]}', '{"a":[2,1]}')).toBe(false)
    expect(isSameJson('{', '{')).toBe(false)
  })
})
