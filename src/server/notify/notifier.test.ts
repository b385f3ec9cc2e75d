import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { NamedBells } from './notifier.ts'

const never = new AbortController().signal

test('wakes those who wait for a name, and no others', async () => {
  const clock = new FakeClock()
  const bell = new NamedBells(clock)
  using mine = bell.listen('mine')
  using theirs = bell.listen('theirs')
  const heard: string[] = []
  const waiting = [
    mine.next(1000, never).then(() => heard.push('mine')),
    theirs.next(1000, never).then(() => heard.push('theirs')),
  ]
  bell.ring('mine')
  await clock.advance(1)
  expect(heard).toEqual(['mine'])
  await clock.run(Promise.all(waiting))
  expect(clock.pending).toBe(0)
})

test('what rings between two looks is not missed, and is heard once', async () => {
  const clock = new FakeClock()
  const bell = new NamedBells(clock)
  using ear = bell.listen('name')
  bell.ringAll()
  await ear.next(1000, never)
  const before = clock.now()
  await clock.run(ear.next(1000, never))
  expect(clock.now() - before).toBe(1000)
})

test('an aborted signal ends the wait, and nothing is kept of those who left', async () => {
  const clock = new FakeClock()
  const bell = new NamedBells(clock)
  const gone = new AbortController()
  const ear = bell.listen('name')
  const waiting = ear.next(1000, gone.signal)
  gone.abort()
  await waiting
  await ear.next(1000, gone.signal)
  ear[Symbol.dispose]()
  expect(bell.size).toBe(0)
  expect(clock.pending).toBe(0)
})
