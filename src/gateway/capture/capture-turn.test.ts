import { expect, test } from 'vitest'
import type { AnswerStart, ChoiceDelta } from '../../model/stream-event.ts'
import { TurnCapture } from './capture-turn.ts'

const start: AnswerStart = { type: 'answer-start', id: 'a', model: 'm', created: 1 }

function delta(...ids: number[]): ChoiceDelta {
  return { type: 'choice-delta', choice: 0, ids: Int32Array.from(ids), logprobs: new Float32Array(ids.length) }
}

function spansOf(begin: AnswerStart, range?: { version: string; newest?: string }): unknown {
  const capture = new TurnCapture()
  capture.add(begin, range)
  capture.add(delta(1, 2), range)
  return capture.toResponse()?.choices[0]?.weightSpans
}

test('a span of weights begins where the range of possible versions changes', () => {
  const capture = new TurnCapture()
  capture.add(start)
  capture.add(delta(1, 2), { version: 'a' })
  capture.add(delta(3), { version: 'a' })
  capture.add(delta(4), { version: 'a', newest: 'b' })
  capture.add(delta(5, 6), { version: 'a', newest: 'b' })
  capture.add(delta(7), { version: 'a', newest: 'c' })
  const response = capture.toResponse()
  expect(response?.choices[0]?.weightSpans).toEqual([
    { from: 0, version: 'a' },
    { from: 3, version: 'a', newest: 'b' },
    { from: 6, version: 'a', newest: 'c' },
  ])
  expect(response?.weightVersion).toBe('a')
})

test('a weight version that the engine reports at the end gives a range if it changed during the call', () => {
  expect(spansOf({ ...start, weightVersion: 'b', weightVersionBefore: 'b' })).toEqual([{ from: 0, version: 'b' }])
  expect(spansOf({ ...start, weightVersion: 'b', weightVersionBefore: 'a' })).toEqual([
    { from: 0, version: 'a', newest: 'b' },
  ])
})

test('weights are unknown when the engine reported no version before the call', () => {
  expect(spansOf({ ...start, weightVersion: 'b' })).toBeUndefined()
})

test('versions set by the trainer take precedence over those reported by the engine', () => {
  const named = { ...start, weightVersion: 'default', weightVersionBefore: 'default' }
  expect(spansOf(named, { version: 'step-1' })).toEqual([{ from: 0, version: 'step-1' }])
})
