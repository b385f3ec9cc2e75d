import fc from 'fast-check'
import { expect, test } from 'vitest'
import { Slots, type Slot } from './slots.ts'

test('acquire() serves waiters by priority, then in order of arrival', async () => {
  const slots = new Slots(1)
  const held = await slots.acquire(0)
  const entered: string[] = []
  const waiting = [
    ['a', 0],
    ['b', 5],
    ['c', 0],
    ['d', 5],
  ] as const
  const all = waiting.map(async ([name, priority]) => {
    using _ = await slots.acquire(priority)
    entered.push(name)
  })
  held.release()
  await Promise.all(all)
  expect(entered).toEqual(['b', 'd', 'a', 'c'])
})

test('an aborted waiter holds no slot', async () => {
  const slots = new Slots(1)
  const held = await slots.acquire(0)
  const gone = new AbortController()
  const waits = slots.acquire(0, gone.signal)
  gone.abort(new Error('no more'))
  await expect(waits).rejects.toThrow('no more')
  expect(slots.waiting).toBe(0)
  held.release()
  held.release()
  expect(slots.inUse).toBe(0)
  expect(() => slots.acquire(0, gone.signal)).toThrow('no more')
})

test('never more than `width` slots are held, and no slot is lost, also with repeated releases', async () => {
  const step = fc.record({ kind: fc.constantFrom('enter', 'leave', 'leave again', 'abort'), pick: fc.nat() })
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 4 }), fc.array(step, { maxLength: 60 }), async (width, steps) => {
      const slots = new Slots(width)
      const held: Slot[] = []
      const used: Slot[] = []
      const waiting = new Set<AbortController>()
      const all: Promise<void>[] = []
      for (const { kind, pick } of steps) {
        if (kind === 'enter') {
          const controller = new AbortController()
          waiting.add(controller)
          const enter = slots.acquire(pick % 3, controller.signal).then(
            (slot) => {
              waiting.delete(controller)
              held.push(slot)
            },
            () => void waiting.delete(controller),
          )
          all.push(enter)
        } else if (kind === 'leave') {
          const [slot] = held.splice(pick % Math.max(1, held.length), 1)
          slot?.release()
          if (slot) used.push(slot)
        } else if (kind === 'leave again') used[pick % Math.max(1, used.length)]?.release()
        else [...waiting][pick % Math.max(1, waiting.size)]?.abort(new Error('gone'))
        await new Promise((resolve) => setImmediate(resolve))
        expect(held.length).toBe(slots.inUse)
        expect(slots.inUse).toBeLessThanOrEqual(width)
        expect(slots.waiting === 0 || slots.inUse === width).toBe(true)
      }
      while (held.length > 0 || waiting.size > 0) {
        held.pop()?.release()
        await new Promise((resolve) => setImmediate(resolve))
      }
      await Promise.all(all)
      expect([slots.inUse, slots.waiting]).toEqual([0, 0])
    }),
    { numRuns: 300 },
  )
})
