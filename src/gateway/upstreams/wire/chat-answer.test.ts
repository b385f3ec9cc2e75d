import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { formatSse } from '../../../lib/net/sse.ts'
import type { StreamEvent } from '../../../model/stream-event.ts'
import { TurnCapture } from '../../capture/capture-turn.ts'
import { ChunkReader } from './chat-answer.ts'

/** A vLLM stream of one choice: text cut into steps of some ids each. */
const anyAnswer = fc.record({
  prompt: fc.array(fc.nat(6399), { minLength: 1 }),
  steps: fc.array(
    fc.record({
      content: fc.option(fc.string({ unit: 'grapheme' }), { nil: undefined }),
      reasoning: fc.option(fc.string({ unit: 'grapheme' }), { nil: undefined }),
      ids: fc.array(fc.record({ id: fc.nat(6399), logprob: fc.double({ min: -20, max: -1e-6, noNaN: true }) }), {
        maxLength: 3,
      }),
    }),
  ),
})
type Answer = typeof anyAnswer extends fc.Arbitrary<infer T> ? T : never

function toSse({ prompt, steps }: Answer): string {
  const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'tiny' }
  const sampled = steps.reduce((sum, step) => sum + step.ids.length, 0) + 1
  const frames = [
    { ...head, choices: [{ index: 0, delta: { role: 'assistant', content: '' } }], prompt_token_ids: prompt },
    ...steps.map(({ content, reasoning, ids }) => ({
      ...head,
      choices: [
        {
          index: 0,
          delta: { ...(content === undefined ? {} : { content }), ...(reasoning === undefined ? {} : { reasoning }) },
          logprobs: { content: ids.map(({ logprob }) => ({ logprob })) },
          token_ids: ids.map(({ id }) => id),
        },
      ],
    })),
    {
      ...head,
      choices: [
        { index: 0, delta: {}, logprobs: { content: [{ logprob: -0.5 }] }, token_ids: [2], finish_reason: 'stop' },
      ],
    },
    { ...head, choices: [], usage: { prompt_tokens: prompt.length, completion_tokens: sampled } },
  ]
  return [...frames.map((frame) => formatSse(JSON.stringify(frame))), formatSse('[DONE]')].join('')
}

function read(pieces: readonly Uint8Array[]): StreamEvent[] {
  const reader = new ChunkReader()
  return pieces.flatMap((piece) => reader.push(piece))
}

function capture(events: readonly StreamEvent[]): ReturnType<TurnCapture['toResponse']> {
  const turn = new TurnCapture()
  for (const event of events) turn.add(event)
  return turn.toResponse()
}

describe('ChunkReader', () => {
  test('push() gives the same events and captured tokens for every cut of the bytes', () => {
    fc.assert(
      fc.property(anyAnswer, fc.array(fc.nat()), (answer, places) => {
        const bytes = Buffer.from(toSse(answer))
        const edges = [0, ...places.map((place) => place % bytes.length).sort((a, b) => a - b), bytes.length]
        const pieces = edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge))
        const whole = read([bytes])
        expect(read(pieces)).toEqual(whole)

        const turn = capture(whole)
        const ids = answer.steps.flatMap((step) => step.ids)
        expect(turn).toMatchObject({ grade: 'exact', gradeReasons: [] })
        expect(Array.from(turn?.promptIds ?? [])).toEqual(answer.prompt)
        expect(Array.from(turn?.choices[0]?.ids ?? [])).toEqual([...ids.map(({ id }) => id), 2])
        expect(Array.from(turn?.choices[0]?.logprobs ?? [])).toEqual([
          ...ids.map(({ logprob }) => Math.fround(logprob)),
          -0.5,
        ])
        expect(turn?.choices[0]?.message.content.map((part) => part.type === 'text' && part.text).join('')).toBe(
          answer.steps.map((step) => step.content ?? '').join(''),
        )
      }),
    )
  })

  test.each([
    ['not JSON', 'data: {"id": \n\n'],
    ['no choices', 'data: {"id":"x"}\n\n'],
    ['a choice that is none', 'data: {"id":"x","choices":[null]}\n\n'],
    ['an error in the stream', 'data: {"error":{"message":"engine died"}}\n\n'],
  ])('push() ends with one failure, and ignores what follows: %s', (_, text) => {
    const events = read([Buffer.from(text), Buffer.from('data: [DONE]\n\n')])
    expect(events.at(-1)).toMatchObject({ type: 'answer-error', failure: { code: 'upstream.bad-stream' } })
    expect(events.filter((event) => event.type === 'answer-error' || event.type === 'answer-end')).toHaveLength(1)
  })

  test('push() ignores ids of an unknown form', () => {
    const choice = { index: 0, delta: { content: 'x' }, token_ids: { a: 1 }, logprobs: 7, finish_reason: 'stop' }
    const text = formatSse(JSON.stringify({ id: 'x', choices: [choice], prompt_token_ids: 'no' })) + formatSse('[DONE]')
    expect(capture(read([Buffer.from(text)]))).toMatchObject({ grade: 'text-only' })
  })
})

describe('TurnCapture', () => {
  const start: StreamEvent = {
    type: 'answer-start',
    id: 'a',
    model: 'm',
    created: 1,
    promptTokenIds: Int32Array.of(1, 2),
  }
  const step: StreamEvent = {
    type: 'choice-delta',
    choice: 0,
    text: 'x',
    ids: Int32Array.of(5, 2),
    logprobs: Float32Array.of(-1, -2),
    finishReason: 'stop',
  }
  const usage: StreamEvent = { type: 'usage', usage: { promptTokens: 2, completionTokens: 2 } }
  const end: StreamEvent = { type: 'answer-end' }

  test('toResponse() grades an answer exact when all counts agree', () => {
    expect(capture([start, step, usage, end])?.grade).toBe('exact')
  })

  test.each<[string, StreamEvent[]]>([
    ['no usage', [start, step, end]],
    ['usage of another length', [start, step, { ...usage, usage: { promptTokens: 2, completionTokens: 3 } }, end]],
    ['usage of another prompt', [start, step, { ...usage, usage: { promptTokens: 3, completionTokens: 2 } }, end]],
    ['a logprob too few', [start, { ...step, logprobs: Float32Array.of(-1) }, usage, end]],
    ['a logprob missing', [start, { ...step, logprobs: Float32Array.of(-1, Number.NaN) }, usage, end]],
    ['no finish reason', [start, { ...step, finishReason: undefined }, usage, end]],
    ['no end', [start, step, usage]],
    ['no prompt ids', [{ ...start, promptTokenIds: undefined }, step, usage, end]],
    ['no sampled ids', [start, { ...step, ids: undefined, logprobs: undefined }, usage, end]],
    ['nothing sampled at all', [start, usage, end]],
  ])('toResponse() does not grade an answer exact with %s, and has a reason', (_, events) => {
    const turn = capture(events)
    expect(turn?.grade).not.toBe('exact')
    expect(turn?.gradeReasons.length).toBeGreaterThan(0)
  })

  test('toResponse() has no log probabilities when their number differs from that of the ids', () => {
    const turn = capture([start, { ...step, logprobs: Float32Array.of(-1) }, usage, end])
    expect(Array.from(turn?.choices[0]?.logprobs ?? [])).toEqual([Number.NaN, Number.NaN])
  })
})
