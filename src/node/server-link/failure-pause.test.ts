import pino from 'pino'
import { expect, test } from 'vitest'
import { RolloutError, type FailureCode } from '../../model/failure.ts'
import { Brake } from './failure-pause.ts'

class Road {
  now = 0
  readonly brake = new Brake(() => this.now, pino({ level: 'silent' }))

  end(taskId: string, code?: FailureCode): void {
    this.brake.note({ taskId, ...(code === undefined ? {} : { failure: new RolloutError(code, 'So.').failure }) })
  }
}

test('a node on which session after session of several tasks is spoilt rests, longer each time, until one succeeds', () => {
  const road = new Road()
  for (const task of ['a', 'b', 'c', 'a', 'b']) road.end(task, 'runtime.start-failed')
  expect(road.brake.most).toBe(Infinity)
  road.end('c', 'runtime.start-failed')
  expect(road.brake).toMatchObject({ most: 0, isResting: true })
  road.now += 10_000
  expect(road.brake.most).toBe(1)
  road.end('a', 'upstream.unreachable')
  road.now += 10_000
  expect(road.brake.most).toBe(0)
  road.now += 10_000
  expect(road.brake.most).toBe(1)
  road.end('a')
  expect(road.brake.most).toBe(Infinity)
})

test('one task that cannot be run, and agents that fail by themselves, are no reason to rest', () => {
  const road = new Road()
  for (let i = 0; i < 50; i++) road.end('bad', 'runtime.image-missing')
  for (let i = 0; i < 50; i++) road.end(`task-${i}`, 'harness.exit-nonzero')
  for (let i = 0; i < 50; i++) road.end(`task-${i}`, i % 5 === 0 ? undefined : 'runtime.gone')
  expect(road.brake.most).toBe(Infinity)
})

test('a disk that cannot be written to is reason enough', () => {
  const road = new Road()
  road.brake.noteBroken()
  expect(road.brake.most).toBe(0)
})
