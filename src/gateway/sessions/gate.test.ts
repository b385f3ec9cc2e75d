import { expect, test } from 'vitest'
import { Gate } from './gate.ts'

const never = new AbortController().signal

test('pass() delays work while paused and runs it on resume', async () => {
  const gate = new Gate()
  expect(await gate.pause(1000)).toBe(true)
  const order: string[] = []
  const held = gate.pass(never, async () => order.push('held'))
  await Promise.resolve()
  order.push('before')
  gate.resume()
  await held
  expect(order).toEqual(['before', 'held'])
})

test('pause() waits for work in flight, and returns false after the timeout', async () => {
  const gate = new Gate()
  const work = Promise.withResolvers<void>()
  const running = gate.pass(never, () => work.promise)
  expect(gate.inFlight).toBe(1)
  expect(await gate.pause(5)).toBe(false)
  expect(gate.isPaused).toBe(true)
  const drained = gate.pause(1000)
  work.resolve()
  await running
  expect(await drained).toBe(true)
  expect(gate.inFlight).toBe(0)
})

test('failed work is not in flight', async () => {
  const gate = new Gate()
  await expect(gate.pass(never, () => Promise.reject(new Error('x')))).rejects.toThrow('x')
  expect(await gate.pause(5)).toBe(true)
})

test('pass() rejects when the harness closes a delayed call', async () => {
  const gate = new Gate()
  await gate.pause(5)
  const leaving = new AbortController()
  const held = gate.pass(leaving.signal, async () => 1)
  leaving.abort()
  await expect(held).rejects.toMatchObject({ code: 'request.client-gone' })
  await expect(gate.pass(leaving.signal, async () => 1)).rejects.toMatchObject({ code: 'request.client-gone' })
})

test('pause() while paused keeps delayed work waiting', async () => {
  const gate = new Gate()
  await gate.pause(5)
  const held = gate.pass(never, async () => 'through')
  await gate.pause(5)
  gate.resume()
  expect(await held).toBe('through')
})
