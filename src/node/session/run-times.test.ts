import { expect, test } from 'vitest'
import { RunTimes } from './run-times.ts'

function timesOf(key: string, ...all: readonly number[]): RunTimes {
  const times = new RunTimes()
  for (const ms of all) times.add(key, ms)
  return times
}

test('quantile() is undefined with fewer than three times', () => {
  expect(new RunTimes().quantile('task', 0.5)).toBeUndefined()
  expect(timesOf('task', 10, 20).quantile('task', 0.5)).toBeUndefined()
  expect(timesOf('task', 10, 20, 30).quantile('task', 0.5)).toBe(20)
})

test('quantile() returns one of the added times, independent of their order', () => {
  const times = timesOf('task', 500, 100, 400, 200, 300)
  expect([0, 0.5, 0.8, 1].map((part) => times.quantile('task', part))).toEqual([100, 300, 500, 500])
})

test('quantile() uses only the times of its key', () => {
  const times = timesOf('slow', 100, 100, 100)
  times.add('fast', 1)
  expect(times.quantile('fast', 0.5)).toBeUndefined()
  expect(times.quantile('slow', 0.5)).toBe(100)
})

test('quantile() uses the last 64 times', () => {
  const times = timesOf('task', ...Array.from({ length: 64 }, () => 1000), ...Array.from({ length: 64 }, () => 10))
  expect(times.quantile('task', 1)).toBe(10)
})

test('add() evicts the least recently updated key', () => {
  const times = timesOf('first', 1, 1, 1)
  for (const ms of [2, 2, 2]) times.add('second', ms)
  times.add('first', 1)
  for (let n = 0; n < 4095; n++) times.add(`other-${n}`, 3)
  expect(times.quantile('second', 0.5)).toBeUndefined()
  expect(times.quantile('first', 0.5)).toBe(1)
})
