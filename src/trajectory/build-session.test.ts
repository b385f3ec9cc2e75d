import { expect, test } from 'vitest'
import { Label, type Exclusion, type Sample } from '../model/sample.ts'
import type { SessionRecord } from '../model/session.ts'
import { Trace } from '../model/trajectory.ts'
import { Steering, type Choice, type Turn } from '../model/turn.ts'
import { buildSession } from './build-session.ts'
import { builders } from './builders/index.ts'
import { oldestVersion, weightVersionsOf } from './sample-fields.ts'
import { CallFilter, toCallFilter } from './select-calls.ts'
import { toTrace } from './to-trace.ts'

function choiceOf(index: number, ids: number[]): Choice {
  return {
    index,
    message: {
      role: 'assistant',
      content: [{ type: 'text', text: 'hi' }],
      reasoning: 'hm',
      toolCalls: [{ id: 'c', name: 'f', arguments: '{"a": 1.0}' }],
    },
    finishReason: 'tool-calls',
    ids: Int32Array.from(ids),
    logprobs: Float32Array.from(ids, (id) => -id / 2),
  }
}

function turnOf(index: number, fields: Partial<Turn> = {}): Turn {
  return {
    id: `turn_${index}`,
    sessionId: 'ses_1',
    index,
    dialect: 'openai-chat',
    startedAt: 1,
    endedAt: 2,
    model: 'm',
    stream: true,
    request: '{}',
    headers: {},
    forced: {},
    delivery: 'delivered',
    response: {
      id: 'r',
      model: 'served',
      created: 1,
      // Prompts differ, because equal prompts would be retries of one request.
      promptIds: Int32Array.of(1 + 10 * index, 2, 3),
      choices: [choiceOf(0, [4, 2])],
      grade: 'exact',
      gradeReasons: [],
    },
    ...fields,
  }
}

const failure = { code: 'upstream.reset', message: 'gone', status: 502 } as const
const reader = {
  readRequest: () => undefined,
  readPrompt: () => ({ messages: [{ role: 'user', content: 'x' }], tools: [] }),
}

function build(turns: Turn[], filter = {}): { samples: Sample[]; traces: Trace[]; exclusions: Exclusion[] } {
  const session: SessionRecord = { id: 'ses_1', createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
  const builder = builders.create({ kind: 'per_request' }, {})
  const built = buildSession(session, { builder, filter: CallFilter.parse(filter), weighting: 'tokens', reader })
  const samples = [...built.samples()]
  return { samples, traces: samples.map(toTrace), exclusions: built.exclusions }
}

test('every choice of an exact turn is one trace with its own ids and log probabilities', () => {
  const two = turnOf(0)
  const response = { ...two.response!, choices: [choiceOf(0, [4, 2]), choiceOf(1, [5, 6, 2])] }
  const { traces, exclusions } = build([{ ...two, response }])
  expect(exclusions).toEqual([])
  expect(traces.map((trace) => Trace.parse(trace))).toMatchObject([
    {
      prompt_ids: [1, 2, 3],
      response_ids: [4, 2],
      loss_mask: [1, 1],
      response_logprobs: [-2, -1],
      finish_reason: 'tool_calls',
      reward: null,
      response_messages: [
        {
          role: 'assistant',
          content: 'hi',
          reasoning_content: 'hm',
          tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{"a": 1.0}' } }],
        },
      ],
      metadata: { session_id: 'ses_1', weight: 0.4, calls: [{ turn_id: 'turn_0', choice: 0, from: 3, to: 5 }] },
    },
    { response_ids: [5, 6, 2], loss_mask: [1, 1, 1] },
  ])
})

test('inexact, failed and undelivered answers are excluded with a token count and a reason', () => {
  const doubtful = { ...turnOf(1).response!, grade: 'inferred' as const, gradeReasons: ['2 ids but 1 logprobs'] }
  const { traces, exclusions } = build([
    turnOf(0),
    turnOf(1, { response: doubtful }),
    turnOf(2, { failure }),
    turnOf(3, { delivery: 'undelivered' }),
    turnOf(4, { endedAt: undefined, response: undefined }),
    turnOf(5, { failure, response: undefined }),
  ])
  expect(traces).toHaveLength(1)
  expect(exclusions.map(({ turnId, tokens }) => [turnId, tokens])).toEqual([
    ['turn_1', 2],
    ['turn_2', 2],
    ['turn_3', 2],
    ['turn_4', 0],
    ['turn_5', 0],
  ])
  expect(exclusions.every(({ detail }) => detail !== '')).toBe(true)
  expect(exclusions[0]?.detail).toContain('2 ids but 1 logprobs')
})

test('a trained call under a grammar has the log probability mode of the record, or grammar if an earlier version wrote it', () => {
  const sampling = { asked: {}, sent: {}, defaults: {}, assumed: [] }
  const modeOf = (fields: Partial<Turn>): unknown => {
    const { samples } = build([turnOf(0, { steeredBy: ['tool-choice'], ...fields })], { allowSteered: ['tool-choice'] })
    return samples[0]?.calls[0]?.logprobMode
  }
  const response = { ...turnOf(0).response!, logprobMode: 'raw' as const }
  expect(modeOf({ response, sampling })).toBe('grammar')
  expect(modeOf({ response, sampling: { ...sampling, grammar: { toolChoice: 'required' } } })).toBe('raw')
  expect(modeOf({ sampling })).toBeUndefined()
})

test('a call whose log probabilities are masked for an unknown reason is trained only if every grammar is allowed', () => {
  const masked = turnOf(0, { response: { ...turnOf(0).response!, logprobMode: 'grammar' } })
  expect(build([masked]).exclusions).toMatchObject([{ turnId: 'turn_0', tokens: 2, reason: 'steered' }])
  expect(build([masked], { allowSteered: ['tool-choice'] }).exclusions).toHaveLength(1)
  expect(build([masked], { allowSteered: [...Steering.options] }).exclusions).toEqual([])
})

test.each(['per_request', 'prefix_merging', 'prefix_tree'] as const)(
  'a steered call is not trained by %s, unless its kind of steering is allowed',
  (kind) => {
    const builder = builders.create(builders.config.parse({ kind }), {})
    const turns = [turnOf(0), turnOf(1, { steeredBy: ['response-format', 'prefill'] })]
    const session = { id: 'ses_1', createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
    const exclusionsWith = (allowSteered: Steering[]): Exclusion[] => {
      const filter = CallFilter.parse({ allowSteered })
      const built = buildSession(session, { builder, filter, weighting: 'tokens', reader })
      expect([...built.samples()].flatMap(({ calls }) => calls.filter(({ isTrained }) => isTrained))).toHaveLength(
        2 - built.exclusions.length,
      )
      return built.exclusions
    }
    const detail = 'the request steered the sampling: response-format, prefill'
    expect(exclusionsWith([])).toEqual([{ turnId: 'turn_1', choice: 0, tokens: 2, reason: 'steered', detail }])
    expect(exclusionsWith(['prefill'])).toMatchObject([
      { reason: 'steered', detail: expect.not.stringContaining('prefill') },
    ])
    expect(exclusionsWith(['prefill', 'response-format'])).toEqual([])
  },
)

test('a trace contains the steering of its calls', () => {
  const { traces } = build([turnOf(0, { steeredBy: ['tool-choice'] })], { allowSteered: ['tool-choice'] })
  expect(traces[0]?.metadata['calls']).toMatchObject([{ steered_by: ['tool-choice'] }])
})

test('toCallFilter() returns only the settings that a task sets', () => {
  expect(toCallFilter(undefined)).toEqual({})
  expect(toCallFilter({ labels: ['main'], allow_steered: [] })).toEqual({ labels: ['main'], allowSteered: [] })
  expect(toCallFilter({ labels: 'all', allow_steered: 'all' })).toEqual({
    labels: Label.options,
    allowSteered: Steering.options,
  })
})

test('an empty answer is never trained, whatever minSampledTokens is', () => {
  const empty = { ...turnOf(0).response!, choices: [choiceOf(0, [])] }
  const { samples, exclusions } = build([turnOf(0, { response: empty })], { minSampledTokens: 0 })
  expect(samples).toEqual([])
  expect(exclusions).toMatchObject([{ turnId: 'turn_0', choice: 0, tokens: 0, reason: 'no-tokens' }])
})

test('tokens sampled before the first known weight version have the provenance sampled', () => {
  const choice = { ...choiceOf(0, [4, 5, 2]), weightSpans: [{ from: 1, version: 'w1' }] }
  const { samples } = build([turnOf(0, { response: { ...turnOf(0).response!, choices: [choice] } })])
  expect(samples[0]?.spans()).toEqual([
    { from: 0, provenance: 'context' },
    { from: 3, provenance: 'sampled', call: 'turn_0#0' },
    { from: 4, provenance: 'sampled', call: 'turn_0#0', weightVersion: 'w1' },
  ])
})

test('a sample keeps the range of versions where a change of weights makes the version uncertain', () => {
  const weightSpans = [
    { from: 0, version: '1' },
    { from: 1, version: '1', newest: '2' },
  ]
  const choice = { ...choiceOf(0, [4, 5, 2]), weightSpans }
  const response = { ...turnOf(0).response!, choices: [choice], weightVersion: '1' }
  const { samples } = build([turnOf(0, { response })])
  expect(samples[0]?.spans().slice(1)).toEqual([
    { from: 3, provenance: 'sampled', call: 'turn_0#0', weightVersion: '1' },
    { from: 4, provenance: 'sampled', call: 'turn_0#0', weightVersion: '1', newestWeightVersion: '2' },
  ])
  expect(samples[0]?.calls).toMatchObject([{ weightVersion: '1', newestWeightVersion: '2' }])
  expect(weightVersionsOf(samples[0]!)).toEqual(['1'])
  expect(oldestVersion(samples[0]!)).toBe(1)
})

test('duplicate records are listed in the order of their turns', () => {
  const turns = [turnOf(1), turnOf(0), turnOf(1), turnOf(0)]
  const listed = [build(turns), build(turns.toReversed())].map(({ exclusions }) =>
    exclusions.filter(({ reason }) => reason === 'duplicate-record'),
  )
  expect(listed[0]?.map(({ turnId }) => turnId)).toEqual(['turn_0', 'turn_1'])
  expect(listed[1]).toEqual(listed[0])
})
