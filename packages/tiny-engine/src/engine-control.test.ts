import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import { joinChoice, post, postJson, postStream } from '../../../test/support/engine-client.ts'
import { toOutputBias } from './control-endpoints.ts'
import { type Engine, startEngine } from './engine.ts'
import type { GenerationRecord } from './generation-log.ts'
import type { TrainablePolicy } from './context.ts'

const SCRIPT = `
scenarios:
  slow: [{text: a b c d e f g h i j k l m n o p q r s t, per_token_ms: 15}]
  steady: [{text: a b c d e f g h i j k l m n o p q r s t, per_token_ms: 100}]
  endless: [{tokens: 5000, per_token_ms: 15}]
  never: [{text: x, first_token_ms: 60000}]
default: {text: fine}
`

let engine: Engine
let records: GenerationRecord[] = []
beforeAll(async () => {
  engine = await startEngine({ script: SCRIPT, log: (record) => records.push(record) })
})
afterEach(async () => {
  await control('/resume')
  records = []
})
afterAll(() => engine.close())

async function control(path: string, body?: unknown, from = engine): Promise<unknown> {
  const init =
    body === undefined
      ? { method: 'POST' }
      : { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
  return (await fetch(from.url + path, init)).json()
}

async function read(path: string): Promise<unknown> {
  return (await fetch(engine.url + path)).json()
}

const url = () => `${engine.url}/v1/chat/completions`
const chatBody = (scenario: string, more: Record<string, unknown> = {}) => ({
  messages: [{ role: 'user', content: `SCRIPT:${scenario}` }],
  return_token_ids: true,
  ...more,
})
const isRunning = () => vi.waitFor(() => expect(engine.runningCount).toBe(1), { timeout: 30_000, interval: 2 })

/** Returns the number of tokens that the engine has sampled. */
const sampled = async () =>
  Number(/generation_tokens_total\S* (\d+)/.exec(await (await fetch(`${engine.url}/metrics`)).text())?.[1] ?? 0)

describe('pause', () => {
  test('mode abort ends running requests with finish reason abort, and holds new requests back', async () => {
    const before = await sampled()
    const streamed = postStream(url(), chatBody('endless'))
    const whole = postJson(url(), chatBody('endless'))
    await vi.waitFor(() => expect(engine.runningCount).toBe(2), { timeout: 30_000, interval: 2 })
    await expect.poll(sampled).toBeGreaterThan(before + 20)
    expect(await control('/pause')).toEqual({ status: 'paused' })
    expect(await read('/is_paused')).toEqual({ is_paused: true })
    expect(engine.runningCount).toBe(0)
    const joined = joinChoice((await streamed).chunks)
    expect(joined.finishReason).toBe('abort')
    expect(joined.ids.length).toBeGreaterThan(0)
    expect((await streamed).isDone).toBe(true)
    expect((await whole).body.choices[0]?.finish_reason).toBe('abort')
    expect(records).toMatchObject([{ aborted: true }, { aborted: true }])

    let isAnswered = false
    const held = postJson(url(), chatBody('other')).finally(() => (isAnswered = true))
    await sleep(50)
    expect(isAnswered).toBe(false)
    expect(await control('/resume')).toEqual({ status: 'resumed' })
    expect((await held).body.choices[0]?.message?.content).toBe('fine')
  })

  test('a stream aborted before its first token has no finish reason', async () => {
    const streamed = postStream(url(), chatBody('never'))
    await isRunning()
    await control('/pause?mode=abort')
    const { chunks, isDone } = await streamed
    expect(chunks).toHaveLength(1)
    expect(isDone).toBe(true)
  })

  test('mode wait lets running requests end first', async () => {
    const running = postJson(url(), chatBody('slow'))
    await isRunning()
    await control('/pause?mode=wait')
    expect(engine.runningCount).toBe(0)
    expect((await running).body.choices[0]?.finish_reason).toBe('stop')
  })

  test('mode keep freezes running requests between two tokens, and the log records the first token of new weights', async () => {
    const atStart = await sampled()
    const running = postStream(url(), chatBody('steady', { n: 2, temperature: 1 }))
    await isRunning()
    await expect.poll(sampled, { interval: 5 }).toBeGreaterThanOrEqual(atStart + 4)
    await control('/pause?mode=keep')
    const before = await sampled()
    await control('/update_weight_version', { new_version: 'next' })
    await sleep(60)
    expect(await sampled()).toBe(before)
    expect(engine.runningCount).toBe(1)
    await control('/resume')
    const { chunks } = await running
    for (const index of [0, 1]) expect(joinChoice(chunks, index).finishReason).toBe('stop')
    expect(records[0]).toMatchObject({ weight_version: 'default', aborted: false })
    expect(records[0]?.weight_changes).toHaveLength(2)
    for (const change of records[0]?.weight_changes ?? []) {
      expect(change).toMatchObject({ weight_version: 'next' })
      expect(change.from_token).toBeGreaterThan(0)
      expect(change.from_token).toBeLessThan(20)
    }
    await control('/update_weight_version', { new_version: 'default' })
  })

  test('a later pause replaces an earlier pause', async () => {
    const running = postJson(url(), chatBody('slow'))
    await isRunning()
    await control('/pause?mode=keep')
    await control('/pause?mode=wait')
    expect((await running).body.choices[0]?.finish_reason).toBe('stop')
    expect(await read('/is_paused')).toEqual({ is_paused: true })
  })

  test('a frozen request ends when its client disconnects', async () => {
    const controller = new AbortController()
    const pending = post(url(), chatBody('endless', { stream: true }), { signal: controller.signal }).then((response) =>
      response.text(),
    )
    pending.catch(() => {})
    await isRunning()
    await sleep(30)
    await control('/pause?mode=keep')
    controller.abort()
    await vi.waitFor(() => expect(engine.runningCount).toBe(0), { timeout: 30_000, interval: 5 })
  })

  test('an unknown mode is rejected', async () => {
    expect((await fetch(`${engine.url}/pause?mode=later`, { method: 'POST' })).status).toBe(400)
    expect(await read('/is_paused')).toEqual({ is_paused: false })
  })
})

describe('abort_requests', () => {
  test('ends the named requests, or all requests', async () => {
    const one = postJson(url(), chatBody('never', { request_id: 'one' }))
    const two = postJson(url(), chatBody('never', { request_id: 'two' }))
    await vi.waitFor(() => expect(engine.runningCount).toBe(2), { timeout: 30_000, interval: 2 })
    expect(await control('/abort_requests', { request_ids: ['chatcmpl-one', 'chatcmpl-none'] })).toEqual({
      status: 'aborted',
      aborted: 1,
    })
    expect((await one).body.choices[0]?.finish_reason).toBe('abort')
    expect(engine.runningCount).toBe(1)
    expect(await control('/abort_requests', {})).toEqual({ status: 'aborted', aborted: 1 })
    expect((await two).body.choices[0]?.message?.content).toBe('')
  })
})

describe('weights', () => {
  test('the version can be read and set', async () => {
    expect(await read('/weight_info')).toEqual({ weight_version: 'default' })
    expect(await control('/update_weight_version', { new_version: 'v1' })).toEqual({ success: true, new_version: 'v1' })
    await postJson(url(), chatBody('other'))
    expect(records.at(-1)?.weight_version).toBe('v1')
    await control('/update_weight_version', { new_version: 'default' })
  })

  test('a script has no weights to update', async () => {
    const body = { update_info: { output_bias: { 5: 1 } } }
    expect(await control('/update_weights', body)).toMatchObject({ error: { code: 400, param: 'update_info' } })
    expect(await control('/update_weights', {})).toMatchObject({
      error: { message: "Missing 'update_info' in request body" },
    })
  })

  test('a policy with weights receives the update, and the version changes with it', async () => {
    const updates: Float32Array[] = []
    const lowRanks: unknown[] = []
    const policy: TrainablePolicy = {
      name: 'trainable',
      start: () => Promise.reject(new Error('not asked')),
      hiddenSize: 4,
      setOutputWeights: async ({ bias, lowRank }) => {
        if (bias !== undefined) updates.push(bias)
        if (lowRank !== undefined) lowRanks.push(lowRank)
      },
      async [Symbol.asyncDispose]() {},
    }
    await using trainable = await startEngine({ policy })
    const update = (bias: unknown, version?: string) =>
      control('/update_weights', { update_info: { output_bias: bias }, weight_version: version }, trainable)
    expect(await update({ 7: 1.5 }, 'step-1')).toEqual({ message: 'Weights updated' })
    expect(await (await fetch(`${trainable.url}/weight_info`)).json()).toEqual({ weight_version: 'step-1' })
    const values = Float32Array.from({ length: 6400 }, (_, i) => i / 7)
    expect(await update(Buffer.from(values.buffer).toString('base64'))).toEqual({ message: 'Weights updated' })
    expect(updates[0]?.[7]).toBe(1.5)
    expect(updates[1]).toEqual(values)
    for (const wrong of ['AAAA', { x: 1 }, { 6400: 1 }, [1], 5]) {
      expect(await update(wrong)).toMatchObject({ error: { code: 400 } })
    }
    const [down, up] = [new Float32Array(4).fill(0.5), values]
    const toWire = (part: Float32Array) => Buffer.from(part.buffer).toString('base64')
    const updateLowRank = (lowRank: unknown) =>
      control('/update_weights', { update_info: { low_rank: lowRank } }, trainable)
    const wire = { rank: 1, down: toWire(down), up: toWire(up) }
    expect(await updateLowRank(wire)).toEqual({ message: 'Weights updated' })
    expect(lowRanks).toEqual([{ rank: 1, down, up }])
    for (const wrong of [{ ...wire, rank: 2 }, { ...wire, down: wire.up }, { rank: 1 }, null]) {
      expect(await updateLowRank(wrong)).toMatchObject({ error: { code: 400 } })
    }
    expect(lowRanks).toHaveLength(1)
  })
})

test('toOutputBias() rejects values that are not finite', () => {
  const values = new Float32Array(2)
  values[1] = Number.NaN
  expect(() => toOutputBias(Buffer.from(values.buffer).toString('base64'), 2)).toThrow('not finite')
})

test('sampling defaults of the server apply to the parameters that a request does not set', async () => {
  await using other = await startEngine({
    script: SCRIPT,
    scaleOut: true,
    generationConfig: { temperature: 0.6, top_k: 20 },
  })
  const body = { messages: [{ role: 'user', content: 'x' }], temperature: 0.9 }
  expect(await control('/v1/chat/completions/render', body, other)).toMatchObject({
    sampling_params: { temperature: 0.9, top_k: 20, top_p: 1 },
  })
})

test('an engine that loads answers 503 until it is ready', async () => {
  await using loading = await startEngine({ script: SCRIPT, isLoading: true })
  const status = async (path: string): Promise<number> => (await fetch(loading.url + path)).status
  expect(await status('/v1/models')).toBe(503)
  expect(await status('/health')).toBe(503)
  loading.finishLoading()
  expect(await status('/v1/models')).toBe(200)
})
