import { expect, test } from 'vitest'
import { createLimit } from './limit.ts'

test('createLimit() limits concurrency, keeps the order, and continues after a failure', async () => {
  const limit = createLimit(2)
  const events: string[] = []
  let running = 0
  const work = (name: string) => async (): Promise<string> => {
    running += 1
    expect(running).toBeLessThanOrEqual(2)
    events.push(name)
    await new Promise((resolve) => setImmediate(resolve))
    running -= 1
    if (name === 'b') throw new Error('b failed')
    return name
  }
  const results = await Promise.allSettled(['a', 'b', 'c', 'd', 'e'].map((name) => limit(work(name))))
  expect(events).toEqual(['a', 'b', 'c', 'd', 'e'])
  expect(results.map((result) => result.status)).toEqual([
    'fulfilled',
    'rejected',
    'fulfilled',
    'fulfilled',
    'fulfilled',
  ])
  await expect(limit(work('f'))).resolves.toBe('f')
})
