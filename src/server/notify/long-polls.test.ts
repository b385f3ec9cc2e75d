import { expect, test } from 'vitest'
import { Waits } from './long-polls.ts'

test('beyond so many, callers are asked to come back; who is done makes room', async () => {
  const closing = new AbortController()
  const waits = new Waits(closing.signal, 2)
  const never = new AbortController().signal
  const first = waits.enter(never)
  waits.enter(never)
  expect(() => waits.assertRoom()).toThrow('2 callers wait')
  const third = waits.during(never, async () => 'never')
  await expect(third).rejects.toMatchObject({ failure: { status: 503, retryAfterSeconds: 1 } })
  first[Symbol.dispose]()
  expect(await waits.during(never, async () => 'room')).toBe('room')
  expect(waits.count).toBe(1)
})

test('a closing server ends every wait, also one that only begins then', () => {
  const closing = new AbortController()
  const waits = new Waits(closing.signal)
  const never = new AbortController().signal
  const before = waits.enter(never)
  closing.abort()
  expect(before.signal.aborted).toBe(true)
  expect(waits.enter(never).signal.aborted).toBe(true)
})
