import { expect, test } from 'vitest'
import { LongPolls } from './long-polls.ts'

test('a long poll beyond the limit is rejected with 503; an ended one frees its slot', async () => {
  const closing = new AbortController()
  const longPolls = new LongPolls(closing.signal, 2)
  const never = new AbortController().signal
  const first = longPolls.begin(never)
  longPolls.begin(never)
  expect(() => longPolls.assertCapacity()).toThrow('2 open long polls')
  const third = longPolls.run(never, async () => 'never')
  await expect(third).rejects.toMatchObject({ failure: { status: 503, retryAfterSeconds: 1 } })
  first[Symbol.dispose]()
  expect(await longPolls.run(never, async () => 'free')).toBe('free')
  expect(longPolls.count).toBe(1)
})

test('a closing server ends every long poll, also one that begins afterwards', () => {
  const closing = new AbortController()
  const longPolls = new LongPolls(closing.signal)
  const never = new AbortController().signal
  const before = longPolls.begin(never)
  closing.abort()
  expect(before.signal.aborted).toBe(true)
  expect(longPolls.begin(never).signal.aborted).toBe(true)
})
