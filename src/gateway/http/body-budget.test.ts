import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { BodyBudget, type HeldBody } from './body-budget.ts'

const MB = 1024 ** 2
const never = new AbortController().signal

function budgetOf(limits: Partial<BodyBudget['limits']> = {}): BodyBudget {
  return new BodyBudget({ sessionBytes: 20 * MB, totalBytes: 50 * MB, waitMs: 60_000, ...limits })
}

async function isPending(promise: Promise<void> | undefined): Promise<boolean> {
  let isSettled = promise === undefined
  promise?.then(
    () => (isSettled = true),
    () => (isSettled = true),
  )
  await setImmediate()
  return !isSettled
}

test('bodies over the limit of a session wait in order until one of its calls has ended', async () => {
  const budget = budgetOf()
  const [first, second, third] = [1, 2, 3].map(() => budget.open('a', never)) as [HeldBody, HeldBody, HeldBody]
  expect(first.grow(15 * MB)).toBeUndefined()
  const large = second.grow(10 * MB)
  const small = third.grow(1)
  expect(await isPending(large)).toBe(true)
  // A small body does not overtake a large one of its own session.
  expect(await isPending(small)).toBe(true)
  expect(budget.open('b', never).grow(15 * MB)).toBeUndefined()
  first[Symbol.dispose]()
  await large
  await small
  expect(budget.used).toBe(25 * MB + 1)
})

test('a body over the session limit is rejected with 429, over the total limit with 503, both with retry-after', async () => {
  const budget = budgetOf({ waitMs: 1 })
  void budget.open('a', never).grow(20 * MB)
  await expect(budget.open('a', never).grow(1)).rejects.toMatchObject({
    failure: { code: 'request.over-quota', status: 429, retryAfterSeconds: 5 },
    message: expect.stringContaining('This session has 20 MB of request bodies in flight; the limit is 20 MB'),
  })
  void budget.open('b', never).grow(20 * MB)
  void budget.open('c', never).grow(10 * MB)
  await expect(budget.open('d', never).grow(10 * MB)).rejects.toMatchObject({
    failure: { code: 'request.over-quota', status: 503, retryAfterSeconds: 5 },
    message: expect.stringContaining('The gateway holds 50 MB of request bodies; the limit is 50 MB'),
  })
})

test('small bodies of other sessions are admitted when the gateway is full', () => {
  const budget = budgetOf()
  for (const hostile of ['a', 'b', 'c']) void budget.open(hostile, never).grow(20 * MB)
  for (let session = 0; session < 20; session++) {
    expect(budget.open(`innocent-${session}`, never).grow(4 * MB)).toBeUndefined()
  }
})

test('a single body is admitted, even over the limits', () => {
  const body = budgetOf().open('a', never)
  expect(body.grow(30 * MB)).toBeUndefined()
  expect(body.grow(30 * MB)).toBeUndefined()
})

test('an aborted body stops waiting', async () => {
  const budget = budgetOf()
  void budget.open('a', never).grow(20 * MB)
  const gone = new AbortController()
  const waiting = budget.open('a', gone.signal).grow(MB)
  gone.abort()
  await expect(waiting).rejects.toMatchObject({ failure: { code: 'request.client-gone' } })
})

test('all bytes are released, and no body waits while the budget is free', async () => {
  const step = fc.record({
    session: fc.constantFrom('a', 'b', 'c'),
    mb: fc.integer({ min: 0, max: 40 }),
    end: fc.nat(9),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
      const budget = budgetOf()
      const open: { body: HeldBody; ready: Promise<void> | undefined }[] = []
      for (const { session, mb, end } of steps) {
        const body = budget.open(session, never)
        open.push({ body, ready: body.grow(mb * MB) })
        const [ended] = open.filter(({ body: { bytes } }) => bytes > 0).slice(end, end + 1)
        ended?.body[Symbol.dispose]()
      }
      for (;;) {
        const held = open.find(({ body }) => body.bytes > 0)
        if (held === undefined) break
        held.body[Symbol.dispose]()
      }
      for (const { ready } of open) await ready
      expect(budget.used).toBe(0)
    }),
  )
})
