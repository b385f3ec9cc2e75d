import { cp, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Worker } from 'node:worker_threads'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { embeddedModelFolder } from '../model-package.ts'
import type { SampledToken, SamplingParams } from '../policies/policy.ts'
import { createInferencePool, PromptError, startInferenceThread } from './pool.ts'
import type { InferencePool, PoolRequest } from './pool.ts'
import { WorkerLostError } from './pool-worker.ts'

const endless: SamplingParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
  maxTokens: 1e6,
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  ignoreEos: true,
  n: 1,
  topLogprobs: 0,
}
const promptIds = Int32Array.of(1, 320, 275, 201, 59, 292, 389, 2, 201, 1, 1078, 538, 501, 201)

let pool: InferencePool
const threads: Worker[] = []
beforeAll(async () => {
  pool = await createInferencePool({
    workers: 2,
    startThread: (settings) => {
      const thread = startInferenceThread(settings)
      threads.push(thread)
      return thread
    },
  })
})
afterAll(() => pool[Symbol.asyncDispose]())

function request(sampling: Partial<SamplingParams> = {}, rest: Partial<PoolRequest> = {}): PoolRequest {
  return { promptIds, sampling: { ...endless, ...sampling }, seed: 3, signal: new AbortController().signal, ...rest }
}

async function readIds(tokens: AsyncIterable<SampledToken>): Promise<number[]> {
  const ids: number[] = []
  for await (const { id } of tokens) ids.push(id)
  return ids
}

const expectIdle = () => vi.waitFor(() => expect(pool.loads).toEqual([0, 0]), { timeout: 30_000 })

test('all tokens arrive, far beyond the lead of a worker', async () => {
  expect(await readIds(pool.open(request({ maxTokens: 100 })).sample(0))).toHaveLength(100)
  await expectIdle()
})

test('choice i has seed + i; iterating a choice again repeats its tokens', async () => {
  const { sample } = pool.open(request({ maxTokens: 10 }))
  const [first, second, again] = await Promise.all([sample(0), sample(1), sample(1)].map(readIds))
  expect(second).not.toEqual(first)
  expect(again).toEqual(second)
  expect(await readIds(pool.open(request({ maxTokens: 10 }, { seed: 4 })).sample(0))).toEqual(second)
})

test('leaving the loop frees the resources of the sequence', async () => {
  for await (const _token of pool.open(request()).sample(0)) break
  await expectIdle()
})

test('return() ends a pending read', async () => {
  const iterator = pool.open(request()).sample(0)[Symbol.asyncIterator]()
  const waiting = iterator.next()
  expect(await iterator.return?.()).toEqual({ done: true, value: undefined })
  expect(await waiting).toEqual({ done: true, value: undefined })
  expect(await iterator.next()).toEqual({ done: true, value: undefined })

  const unread = pool.open(request()).sample(0)[Symbol.asyncIterator]()
  await unread.return?.()
  expect(await unread.next()).toEqual({ done: true, value: undefined })
  await expectIdle()
})

test('a signal ends all choices with its reason and frees their resources', async () => {
  const controller = new AbortController()
  const { sample } = pool.open(request({}, { signal: controller.signal }))
  const reads = [0, 1].map((choice) => readIds(sample(choice)))
  await vi.waitFor(() => expect(pool.loads.reduce((sum, load) => sum + load)).toBe(2))
  controller.abort(new Error('enough'))
  for (const read of reads) await expect(read).rejects.toThrow('enough')
  await expect(readIds(sample(2))).rejects.toThrow('enough')
  await expectIdle()
})

test('a slow reader does not delay other readers', async () => {
  const slow = pool.open(request()).sample(0)[Symbol.asyncIterator]()
  await slow.next()
  const others = await Promise.all(
    [5, 6, 7, 8].map((seed) => readIds(pool.open(request({ maxTokens: 40 }, { seed })).sample(0))),
  )
  expect(others.map((ids) => ids.length)).toEqual([40, 40, 40, 40])
  for (let i = 0; i < 60; i++) expect((await slow.next()).done).toBe(false)
  await slow.return?.()
})

test('invalid prompts are rejected immediately', async () => {
  const open = (ids: ArrayLike<number>) => () => pool.open(request({}, { promptIds: Int32Array.from(ids) }))
  expect(open([])).toThrow(PromptError)
  expect(open([6400])).toThrow('6400')
  expect(open([-1])).toThrow('-1')
  expect(open({ length: 32_768 })).toThrow('the limit of the model is 32768')
  await expect(pool.score(promptIds, Int32Array.of(7000))).rejects.toThrow('7000')
})

test('score() of no tokens is empty', async () => {
  expect((await pool.score(promptIds, new Int32Array())).logprobs).toHaveLength(0)
})

test('setOutputWeights() has updated every worker when it resolves, and requires a number for every token', async () => {
  const favourite = (id: number) => Float32Array.from({ length: 6400 }, (_, other) => (other === id ? 200 : 0))
  await Promise.all([pool.setOutputWeights({ bias: favourite(1) }), pool.setOutputWeights({ bias: favourite(700) })])
  const sampled = await Promise.all(
    [1, 2, 3, 4].map((seed) => readIds(pool.open(request({ maxTokens: 3 }, { seed })).sample(0))),
  )
  expect(sampled.flat()).toEqual(Array(12).fill(700))
  expect((await pool.score(promptIds, Int32Array.of(700))).logprobs).toEqual(Float32Array.of(0))
  await expect(pool.setOutputWeights({ bias: new Float32Array(5) })).rejects.toThrow('6400 finite numbers')
  await expect(pool.setOutputWeights({ bias: new Float32Array(6400).fill(Number.NaN) })).rejects.toThrow(RangeError)
})

test('the tasks of a worker that dies fail with WorkerLostError, and a worker with the same weights replaces it', async () => {
  const generation = pool.open(request())
  const iterator = generation.sample(0)[Symbol.asyncIterator]()
  await iterator.next()
  const scored = pool.score(promptIds, new Int32Array(2000).fill(5))
  const biased = pool.setOutputWeights({
    bias: Float32Array.from({ length: 6400 }, (_, id) => (id === 800 ? 200 : 0)),
  })
  // Not terminate(): Node would abort the whole process if the thread runs native code.
  for (const thread of threads.splice(0)) {
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
    thread.postMessage({ type: 'sample', task: 0, request: 'a bug' })
  }
  await expect(scored).rejects.toThrow(WorkerLostError)
  await expect(drain(iterator)).rejects.toThrow('An inference worker stopped with exit code 1. Cannot read')
  await biased
  expect(pool.loads).toEqual([0, 0])
  expect(threads).toHaveLength(2)
  expect(await readIds(pool.open(request({ maxTokens: 3 })).sample(0))).toEqual([800, 800, 800])
  for await (const { id } of generation.sample(0)) {
    expect(id).toBe(800)
    break
  }
})

test('shutdown fails open tasks and rejects later tasks', async () => {
  const other = await createInferencePool({ workers: 1, backend: 'auto' })
  const read = readIds(other.open(request()).sample(0))
  const scored = other.score(promptIds, new Int32Array(2000).fill(5))
  await vi.waitFor(() => expect(other.loads).toEqual([2]), { timeout: 30_000 })
  const refusals = Promise.allSettled([read, scored])
  await other[Symbol.asyncDispose]()
  await other[Symbol.asyncDispose]()
  expect(await refusals).toMatchObject([
    { reason: { name: 'WorkerLostError', message: 'The inference workers were shut down.' } },
    { reason: { name: 'WorkerLostError' } },
  ])
  await expect(readIds(other.open(request()).sample(0))).rejects.toThrow('shut down')
})

test('a model that does not load throws an error with the cause and leaves no thread', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'model-'))
  const started: Worker[] = []
  try {
    await cp(join(embeddedModelFolder(), 'config.json'), join(folder, 'config.json'))
    const creating = createInferencePool({
      modelFolder: folder,
      workers: 2,
      startThread: (settings) => {
        started.push(startInferenceThread(settings))
        return started.at(-1)!
      },
    })
    await expect(creating).rejects.toThrow('model_quantized.onnx')
    expect(started.map((thread) => thread.threadId)).toEqual([-1, -1])
  } finally {
    await rm(folder, { recursive: true })
  }
})

async function drain(iterator: AsyncIterator<SampledToken>): Promise<void> {
  for (;;) if ((await iterator.next()).done === true) return
}
