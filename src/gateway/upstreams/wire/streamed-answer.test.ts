import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { expect, test } from 'vitest'
import type { StreamEvent } from '../../../model/stream-event.ts'
import { StreamedAnswer } from './streamed-answer.ts'

/** Reads each piece as one event; `end` is the last one. */
function open(weights?: { position: number }): { body: PassThrough; answer: StreamedAnswer } {
  const body = new PassThrough({ highWaterMark: 1024 })
  const reader = {
    ended: false,
    push(bytes: Buffer): StreamEvent[] {
      const text = bytes.toString()
      if (text === 'broken') throw new RangeError('broken')
      reader.ended = text === 'end'
      return [reader.ended ? { type: 'answer-end' } : { type: 'choice-delta', choice: 0, text }]
    },
  }
  const toEvent = (error: Error | undefined): StreamEvent => ({
    type: 'answer-error',
    failure: { code: 'upstream.bad-stream', message: error?.message ?? 'cut', status: 502 },
  })
  return { body, answer: new StreamedAnswer(body, reader, toEvent, weights) }
}

async function typesOf(answer: StreamedAnswer): Promise<string[]> {
  const types: string[] = []
  for await (const events of answer) types.push(...events.map(({ type }) => type))
  return types
}

test('next() returns all events since the previous batch, in order', async () => {
  const { body, answer } = open()
  const first = answer.next()
  body.write('a')
  expect(await first).toMatchObject({ value: [{ text: 'a' }] })
  for (const text of ['b', 'c']) {
    body.write(text)
    await setImmediate()
  }
  expect(await answer.next()).toMatchObject({ value: [{ text: 'b' }, { text: 'c' }] })
})

test('a batch never spans a change of weights, even for a slow consumer', async () => {
  const weights = { position: 1 }
  const { body, answer } = open(weights)
  const first = answer.next()
  body.write('a')
  await first
  expect(answer.arrived()).toBe(1)
  for (const [text, position] of [
    ['b', 1],
    ['c', 2],
    ['d', 2],
    ['e', 4],
  ] as const) {
    weights.position = position
    body.write(text)
    await setImmediate()
  }
  weights.position = 5
  const taken: [string, number][] = []
  for (let i = 0; i < 3; i++) {
    const { value } = await answer.next()
    taken.push([
      (value ?? []).map((event) => (event.type === 'choice-delta' ? event.text : '')).join(),
      answer.arrived(),
    ])
  }
  expect(taken).toEqual([
    ['b', 1],
    ['c,d', 2],
    ['e', 4],
  ])
  body.end('end')
  expect(await typesOf(answer)).toEqual(['answer-end'])
})

test('pauses the engine while the consumer reads nothing, and resumes afterwards', async () => {
  const { body, answer } = open()
  const first = answer.next()
  body.write('a')
  await first
  let sent = 0
  while (body.write('x'.repeat(1024)) || !body.isPaused()) {
    sent += 1
    await setImmediate()
    expect(sent).toBeLessThan(1000)
  }
  expect(sent).toBeGreaterThan(100)
  const { value } = await answer.next()
  expect(value?.length).toBeGreaterThan(100)
  body.end('end')
  expect((await typesOf(answer)).at(-1)).toBe('answer-end')
})

test('reads a response to its end, so that its connection can be used again', async () => {
  const { body, answer } = open()
  const types = typesOf(answer)
  body.write('end')
  expect(await types).toEqual(['answer-end'])
  expect(body.destroyed).toBe(false)
  body.end('more')
  await once(body, 'end')
  expect(body.readableEnded).toBe(true)
})

test('limits the bytes and the time behind the last event', async () => {
  const { body, answer } = open()
  const types = typesOf(answer)
  body.write('end')
  await types
  for (let i = 0; i < 200 && !body.destroyed; i++) {
    body.write('x'.repeat(1024))
    await setImmediate()
  }
  expect(body.destroyed).toBe(true)
})

test('a stream that ends, breaks or cannot be read early ends with an error event', async () => {
  const cut = open()
  const broken = open()
  const unreadable = open()
  const reading = [cut, broken, unreadable].map(({ answer }) => typesOf(answer))
  for (const { body } of [cut, broken, unreadable]) body.write('a')
  await setImmediate()
  cut.body.end()
  broken.body.destroy(new Error('reset'))
  unreadable.body.write('broken')
  for (const types of await Promise.all(reading)) expect(types).toEqual(['choice-delta', 'answer-error'])
  expect(unreadable.body.destroyed).toBe(true)
})

test('return() before the end closes the response', async () => {
  const { body, answer } = open()
  body.write('a')
  for await (const _events of answer) break
  expect(body.destroyed).toBe(true)
})
