import { expect, test } from 'vitest'
import type { SessionResult } from '../model/session.ts'
import type { Trace } from '../model/trajectory.ts'
import { toTrainSession } from './train-session.ts'

/** Two calls: tokens 3 to 5, whose weights changed after the first, and 7 to 8. */
const trace: Trace = {
  prompt_ids: [10, 11, 12],
  response_ids: [13, 14, 15, 16, 17, 18],
  loss_mask: [1, 1, 0, 0, 1, 1],
  response_logprobs: [-1, -2, 0, 0, -3, -4],
  prompt_messages: [],
  response_messages: [],
  reward: 0.5,
  metadata: {
    spans: [
      { from: 0, provenance: 'context' },
      { from: 3, provenance: 'sampled', weight_version: '1' },
      { from: 4, provenance: 'sampled', weight_version: '2' },
      { from: 5, provenance: 'tool' },
      { from: 7, provenance: 'sampled', weight_version: '2' },
    ],
  },
}

function toSession(changes: Partial<Trace> = {}) {
  const trajectory = { status: 'COMPLETED', metadata: {}, traces: [{ ...trace, ...changes }] } as const
  const result = { session_id: 'ses_1', task_id: 'task', status: 'COMPLETED', trajectory, timing: {}, metadata: {} }
  return toTrainSession(result as unknown as SessionResult)
}

test('a session has a call for each run of sampled tokens, with its prompt and versions', () => {
  expect(toSession()).toEqual({
    id: 'ses_1',
    group: 'task',
    reward: 0.5,
    calls: [
      {
        promptIds: Int32Array.of(10, 11, 12),
        ids: Int32Array.of(13, 14),
        logprobs: Float32Array.of(-1, -2),
        versions: Int32Array.of(1, 2),
      },
      {
        promptIds: Int32Array.of(10, 11, 12, 13, 14, 15, 16),
        ids: Int32Array.of(17, 18),
        logprobs: Float32Array.of(-3, -4),
        versions: Int32Array.of(2, 2),
      },
    ],
  })
})

test('a session without a reward is not trained', () => {
  expect(toSession({ reward: null })).toBeUndefined()
})

test.each<[string, Partial<Trace>, RegExp]>([
  ['masks shifted by one', { loss_mask: [0, 1, 1, 0, 0, 1] }, /mask covers tokens 4 to 6/],
  ['a mask that omits a sampled token', { loss_mask: [1, 1, 0, 0, 0, 1] }, /mask covers tokens 8 to 9/],
  ['no log probabilities', { response_logprobs: null }, /without log probabilities/],
  [
    'an uncertain version',
    {
      metadata: {
        spans: [
          { from: 0, provenance: 'context' },
          { from: 3, provenance: 'sampled' },
        ],
      },
      loss_mask: [1, 1, 1, 1, 1, 1],
    },
    /not certain/,
  ],
])('toTrainSession() rejects %s', (_, changes, message) => {
  expect(() => toSession(changes)).toThrow(message)
})
