import { expect, test } from 'vitest'
import type { SamplingParams } from '../policies/policy.ts'
import type { LanguageModel } from './backend.ts'
import { PrefixCache } from './prefix-cache.ts'
import type { SequenceRequest, TaskEvent } from './protocol.ts'
import { CHUNK_TOKENS, nextPiece } from './reading-plan.ts'
import { Scheduler } from './scheduler.ts'

const VOCABULARY = 50
const EOS = 0
/** Token that makes the forward pass fail. */
const POISON = 13

const greedy: SamplingParams = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map([
    [EOS, -100],
    [POISON, -100],
  ]),
  maxTokens: 5,
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  ignoreEos: false,
  n: 1,
  topLogprobs: 0,
}

/**
 * A model whose key-value of a token is its id and the size of the pass that read it, like a model that quantises, and
 * whose logits depend on all key-values.
 */
function createFakeModel() {
  const passes: number[][] = []
  const model: LanguageModel = {
    shape: {
      vocabularySize: VOCABULARY,
      hiddenSize: 1,
      layers: 1,
      keyValueHeads: 1,
      headSize: 1,
      maxLength: 1000,
      eosId: EOS,
    },
    async forward(ids, past) {
      if (ids.includes(POISON)) throw new Error('poisoned')
      passes.push([...ids])
      const memory = Float32Array.from([...past.tensors[0]!, ...ids.values().map((id) => id + ids.length / 1000)])
      const logits = new Float32Array(ids.length * VOCABULARY)
      for (let row = 0; row < ids.length; row++) {
        let sum = 0
        for (let i = 0; i <= past.length + row; i++) sum = (sum * 31 + memory[i]! * 1000) % 65_521
        for (let id = 0; id < VOCABULARY; id++) logits[row * VOCABULARY + id] = ((sum * (id + 1)) % 97) / 10
      }
      return {
        logits,
        hidden: new Float32Array(ids.length),
        state: { length: memory.length, tensors: [memory, memory] },
      }
    },
    release: async () => undefined,
  }
  return { model, passes }
}

function setUp(options: { maxActive?: number; cacheBytes?: number } = {}) {
  const { model, passes } = createFakeModel()
  const cache = new PrefixCache({ capacityBytes: options.cacheBytes ?? 1e6, keyValueHeads: 1 })
  const events: TaskEvent[] = []
  const scheduler = new Scheduler({
    model,
    cache,
    maxActive: options.maxActive ?? 8,
    emit: (event) => events.push(event),
  })
  return { scheduler, passes, events }
}

function request(promptIds: Int32Array, rest: Partial<SequenceRequest> = {}): SequenceRequest {
  return { request: 1, promptIds, sampling: greedy, seed: 1, credit: 100, ...rest }
}

function prompt(length: number, seed = 0): Int32Array {
  return Int32Array.from({ length }, (_, i) => 20 + ((i * 7 + seed) % 25))
}

/** Sizes of the passes that read a prompt from `at` on. */
function piecesOf(length: number, at = 0): number[] {
  const pieces: number[] = []
  for (let read = at; read < length; read += pieces.at(-1)!) pieces.push(nextPiece(read, length))
  return pieces
}

/**
 * Runs the scheduler until it is idle: the longest prompt in this file needs fewer turns.
 */
async function settle(events: readonly TaskEvent[]): Promise<void> {
  for (let quiet = 0, seen = -1; quiet < 300; quiet = events.length === seen ? quiet + 1 : 0) {
    seen = events.length
    await new Promise((resolve) => setImmediate(resolve))
  }
}

function tokensOf(events: readonly TaskEvent[], task: number) {
  return events.filter((event) => event.type === 'token').filter((event) => event.task === task)
}

function idsOf(events: readonly TaskEvent[], task: number): number[] {
  return tokensOf(events, task).map((event) => event.token.id)
}

test('a sequence reads its prompt in pieces and then its own tokens one by one', async () => {
  const { scheduler, passes, events } = setUp()
  const ids = prompt(2 * CHUNK_TOKENS + 3)
  scheduler.sample(1, request(ids))
  await settle(events)
  const pieces = piecesOf(ids.length)
  expect(passes.map((pass) => pass.length)).toEqual([...pieces, 1, 1, 1, 1])
  expect(passes.slice(0, pieces.length).flat()).toEqual([...ids])
  expect(passes.slice(pieces.length).flat()).toEqual(idsOf(events, 1).slice(0, -1))
  expect(tokensOf(events, 1).map((event) => event.isLast)).toEqual([false, false, false, false, true])
})

test('sequences take turns, and have the same tokens as alone', async () => {
  const together = setUp({ maxActive: 3 })
  for (let task = 1; task <= 6; task++) together.scheduler.sample(task, request(prompt(20, task), { request: task }))
  await settle(together.events)
  const order = together.events.map((event) => event.task)
  // The first sequence had its first turn before the others were added.
  expect(order.slice(1, 7)).toEqual([1, 2, 3, 1, 2, 3])
  for (let task = 1; task <= 6; task++) {
    const alone = setUp()
    alone.scheduler.sample(task, request(prompt(20, task)))
    await settle(alone.events)
    expect(idsOf(together.events, task)).toEqual(idsOf(alone.events, task))
  }
})

test('choices of a request read the prompt once', async () => {
  const { scheduler, passes, events } = setUp({ cacheBytes: 0 })
  const sampling = { ...greedy, temperature: 1, maxTokens: 8 }
  for (const task of [1, 2, 3]) scheduler.sample(task, request(prompt(300), { sampling, seed: task }))
  await settle(events)
  expect(passes.filter((ids) => ids.length > 1)).toHaveLength(piecesOf(300).filter((size) => size > 1).length)
  expect(new Set([1, 2, 3].map((task) => idsOf(events, task).join())).size).toBe(3)

  scheduler.sample(4, request(prompt(300), { sampling, seed: 1 }))
  await settle(events)
  expect(idsOf(events, 4)).toEqual(idsOf(events, 1))
})

test('a cached prefix is not read again and changes no token', async () => {
  const { scheduler, passes, events } = setUp()
  const ids = prompt(2 * CHUNK_TOKENS + 40)
  scheduler.sample(1, request(ids.subarray(0, CHUNK_TOKENS + 20), { request: 1 }))
  await settle(events)
  passes.length = 0
  scheduler.sample(2, request(ids, { request: 2 }))
  await settle(events)
  const fresh = setUp({ cacheBytes: 0 })
  fresh.scheduler.sample(2, request(ids))
  await settle(fresh.events)
  const left = piecesOf(ids.length, CHUNK_TOKENS)
  expect(passes.slice(0, left.length).map((pass) => pass.length)).toEqual(left)
  expect(idsOf(events, 2)).toEqual(idsOf(fresh.events, 2))
  expect(tokensOf(events, 2)[0]).toMatchObject({ cachedTokens: CHUNK_TOKENS })
  expect(tokensOf(fresh.events, 2)[0]).toMatchObject({ cachedTokens: 0 })
})

test('a sequence without credit pauses, lets other sequences run, and continues with more credit', async () => {
  const { scheduler, events } = setUp({ maxActive: 1 })
  scheduler.sample(1, request(prompt(10), { credit: 2 }))
  scheduler.sample(2, request(prompt(10, 1), { request: 2 }))
  await settle(events)
  expect([idsOf(events, 1).length, idsOf(events, 2).length]).toEqual([2, 5])
  scheduler.grant(1, 1)
  await settle(events)
  expect(idsOf(events, 1)).toHaveLength(3)
  scheduler.grant(1, 10)
  await settle(events)
  expect(tokensOf(events, 1).at(-1)).toMatchObject({ isLast: true })
})

test('a cancelled task emits no more events, whether it waits, is paused or runs', async () => {
  const { scheduler, passes, events } = setUp({ maxActive: 2 })
  scheduler.sample(1, request(prompt(10), { credit: 1 }))
  scheduler.sample(2, request(prompt(600, 1), { request: 2 }))
  scheduler.sample(3, request(prompt(10, 2), { request: 3 }))
  scheduler.cancel(3)
  while (events.length === 0) await new Promise((resolve) => setImmediate(resolve))
  scheduler.cancel(1)
  scheduler.cancel(2)
  scheduler.cancel(99)
  const [passesBefore, eventsBefore] = [passes.length, events.length]
  scheduler.grant(1, 5)
  await settle(events)
  expect(events).toHaveLength(eventsBefore)
  expect(passes.length).toBeLessThanOrEqual(passesBefore + 1)
})

test('cancelling one choice does not affect the prompt of the others', async () => {
  const { scheduler, events, passes } = setUp({ cacheBytes: 0 })
  scheduler.sample(1, request(prompt(300)))
  scheduler.sample(2, request(prompt(300)))
  scheduler.cancel(1)
  await settle(events)
  expect(idsOf(events, 2)).toHaveLength(5)
  expect(passes.filter((ids) => ids.length > 1)).toHaveLength(piecesOf(300).filter((size) => size > 1).length)
})

test('a failed pass ends only its task', async () => {
  const { scheduler, events } = setUp()
  scheduler.sample(1, request(Int32Array.of(POISON)))
  scheduler.sample(2, request(prompt(10), { request: 2 }))
  await settle(events)
  expect(events.filter((event) => event.type === 'failed')).toEqual([{ type: 'failed', task: 1, message: 'poisoned' }])
  expect(idsOf(events, 2)).toHaveLength(5)
})

test('a sequence ends with the end of turn, a stop id, or when the context is full', async () => {
  const { scheduler, events } = setUp()
  const always = (id: number) => ({
    ...greedy,
    logitBias: new Map([
      [POISON, -100],
      [id, 100],
    ]),
  })
  scheduler.sample(1, request(prompt(5), { request: 1, sampling: always(EOS) }))
  scheduler.sample(2, request(prompt(5), { request: 2, sampling: { ...always(EOS), ignoreEos: true } }))
  scheduler.sample(3, request(prompt(5), { request: 3, sampling: { ...always(7), stopTokenIds: [7] } }))
  scheduler.sample(4, request(prompt(998), { request: 4 }))
  scheduler.sample(5, request(prompt(5), { request: 5, sampling: { ...always(EOS), minTokens: 2 } }))
  await settle(events)
  expect(idsOf(events, 1)).toEqual([EOS])
  expect(idsOf(events, 2)).toEqual([EOS, EOS, EOS, EOS, EOS])
  expect(idsOf(events, 3)).toEqual([7])
  expect(idsOf(events, 4)).toHaveLength(2)
  expect(idsOf(events, 5)).toHaveLength(3)
  for (const task of [1, 2, 3, 4, 5]) expect(tokensOf(events, task).at(-1)).toMatchObject({ isLast: true })
})

test('scoring returns the log probabilities of sampling, except for quantisation if several tokens are read at a time', async () => {
  const { scheduler, events } = setUp()
  scheduler.sample(1, request(prompt(150), { sampling: { ...greedy, maxTokens: 9, temperature: 1 } }))
  await settle(events)
  const ids = Int32Array.from(idsOf(events, 1))
  scheduler.score(2, { promptIds: prompt(150), ids, stepTokens: 1, withPredictions: false })
  scheduler.score(3, { promptIds: prompt(150), ids, stepTokens: 4, withPredictions: false })
  scheduler.score(4, { promptIds: prompt(150), ids: ids.subarray(0, 1), stepTokens: 4, withPredictions: false })
  await settle(events)
  const scored = events.filter((event) => event.type === 'scored')
  const logprobs = tokensOf(events, 1).map((event) => event.token.logprob)
  const scoresOf = (task: number) => [...(scored.find((event) => event.task === task)?.scores.logprobs ?? [])]
  expect(scoresOf(2)).toEqual(logprobs)
  expect(scoresOf(3)).toHaveLength(9)
  // The first token follows the same pass; later tokens follow passes of another size, which affects this model's logits.
  expect(scoresOf(3)[0]).toBe(logprobs[0])
  expect(scoresOf(3)[4]).not.toBe(logprobs[4])
  expect(scoresOf(4)).toEqual(logprobs.slice(0, 1))
})

test('an output bias is part of the weights from the next token on', async () => {
  const { scheduler, events } = setUp()
  scheduler.sample(1, request(prompt(10), { credit: 1 }))
  await settle(events)
  scheduler.setOutputWeights({ bias: Float32Array.from({ length: VOCABULARY }, (_, id) => (id === 9 ? 1000 : 0)) })
  scheduler.grant(1, 10)
  await settle(events)
  expect(idsOf(events, 1).slice(1)).toEqual([9, 9, 9, 9])
  expect(tokensOf(events, 1)[1]?.token).toMatchObject({ logprob: 0, rank: 0 })
})

test('close() drops all tasks and waits for the current pass', async () => {
  const { scheduler, events, passes } = setUp()
  for (let task = 1; task <= 4; task++) scheduler.sample(task, request(prompt(500), { request: task }))
  await scheduler.close()
  const before = passes.length
  await settle(events)
  expect([passes.length, events.length]).toEqual([before, 0])
})
