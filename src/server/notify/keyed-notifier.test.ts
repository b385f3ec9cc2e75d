import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { KeyedNotifier } from './keyed-notifier.ts'

const never = new AbortController().signal

test('notify() wakes only the subscribers of the key', async () => {
  const clock = new FakeClock()
  const notifier = new KeyedNotifier(clock)
  using mine = notifier.subscribe('mine')
  using theirs = notifier.subscribe('theirs')
  const woken: string[] = []
  const waiting = [
    mine.next(1000, never).then(() => woken.push('mine')),
    theirs.next(1000, never).then(() => woken.push('theirs')),
  ]
  notifier.notify('mine')
  await clock.advance(1)
  expect(woken).toEqual(['mine'])
  await clock.run(Promise.all(waiting))
  expect(clock.pending).toBe(0)
})

test('a notification between two calls of next() is delivered once', async () => {
  const clock = new FakeClock()
  const notifier = new KeyedNotifier(clock)
  using subscription = notifier.subscribe('name')
  notifier.notifyAll()
  await subscription.next(1000, never)
  const before = clock.now()
  await clock.run(subscription.next(1000, never))
  expect(clock.now() - before).toBe(1000)
})

test('an aborted signal ends next(), and a disposed subscription leaves no state', async () => {
  const clock = new FakeClock()
  const notifier = new KeyedNotifier(clock)
  const gone = new AbortController()
  const subscription = notifier.subscribe('name')
  const waiting = subscription.next(1000, gone.signal)
  gone.abort()
  await waiting
  await subscription.next(1000, gone.signal)
  subscription[Symbol.dispose]()
  expect(notifier.size).toBe(0)
  expect(clock.pending).toBe(0)
})
