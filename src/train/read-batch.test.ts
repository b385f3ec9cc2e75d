import { expect, test } from 'vitest'
import { createLowRank, forward, type LowRank } from './low-rank.ts'
import { readBatch } from './read-batch.ts'
import type { TrainCall, TrainSession } from './train-session.ts'

const SHAPE = { hiddenSize: 3, vocabularySize: 9 }
const VERSIONS = new Map<number, LowRank>([1, 2].map((version) => [version, makeWeights(version)]))

function makeWeights(seed: number): LowRank {
  const values = (length: number) => Float32Array.from({ length }, (_, i) => Math.sin(seed * 7 + i))
  return { ...createLowRank(1, SHAPE, () => 0.5), down: values(3), up: values(9) }
}

/** A frozen model whose predictions depend on the number of tokens before them. */
async function read(promptIds: Int32Array, ids: Int32Array) {
  const rows = (width: number) =>
    Float32Array.from({ length: ids.length * width }, (_, i) => Math.cos(promptIds.length * 3 + i))
  return { logits: rows(SHAPE.vocabularySize), hidden: rows(SHAPE.hiddenSize) }
}

async function makeCall(prompt: number, ids: number[], versions: number[]): Promise<TrainCall> {
  const promptIds = new Int32Array(prompt)
  const { logits, hidden } = await read(promptIds, Int32Array.from(ids))
  const logprobs = ids.map((id, i) => {
    const prediction = { logits: logits.subarray(i * 9, i * 9 + 9), hidden: hidden.subarray(i * 3, i * 3 + 3) }
    return forward(VERSIONS.get(versions[i]!)!, prediction, id).logprob
  })
  const call = { ids: Int32Array.from(ids), versions: Int32Array.from(versions), logprobs: Float32Array.from(logprobs) }
  return { promptIds, ...call }
}

const options = {
  advantages: 'grpo',
  tolerance: 1e-5,
  read,
  weightsOf: (version: number) => VERSIONS.get(version),
} as const

async function makeSessions(): Promise<TrainSession[]> {
  const calls = [await makeCall(4, [1, 2, 3], [1, 1, 2]), await makeCall(9, [4, 5], [2, 2])]
  return [
    { id: 'a', group: 'x', reward: 1, calls },
    { id: 'b', group: 'x', reward: 0, calls: [await makeCall(4, [8], [1])] },
    { id: 'c', group: 'y', reward: 0.5, calls: [await makeCall(2, [8], [1])] },
  ]
}

test('tokens have the advantage of their session; groups with equal rewards are omitted', async () => {
  const { tokens, maxLogprobError } = await readBatch(await makeSessions(), options)
  expect(tokens.map(({ id, advantage }) => [id, advantage])).toEqual([
    [1, 0.5],
    [2, 0.5],
    [3, 0.5],
    [4, 0.5],
    [5, 0.5],
    [8, -0.5],
  ])
  expect(maxLogprobError).toBeLessThan(1e-6)
})

test.each<[string, (call: TrainCall) => TrainCall, RegExp]>([
  ['another log probability', (call) => ({ ...call, logprobs: call.logprobs.with(1, -9) }), /captured .* is -9\.0000/],
  ['no log probability', (call) => ({ ...call, logprobs: call.logprobs.with(1, Number.NaN) }), /captured .* is NaN/],
  ['another id', (call) => ({ ...call, ids: call.ids.with(0, 7) }), /token 0 \(id 7\)/],
  ['another version', (call) => ({ ...call, versions: call.versions.with(2, 1) }), /token 2 .* of version 1/],
  [
    'a version that is not kept',
    (call) => ({ ...call, versions: call.versions.with(2, 9) }),
    /version 9, whose weights/,
  ],
  ['another prompt', (call) => ({ ...call, promptIds: new Int32Array(5) }), /captured/],
])('readBatch() rejects a batch with %s', async (_, change, message) => {
  const [first, ...others] = await makeSessions()
  const changed = { ...first!, calls: [change(first!.calls[0]!), first!.calls[1]!] }
  await expect(readBatch([changed, ...others], options)).rejects.toThrow(message)
})
