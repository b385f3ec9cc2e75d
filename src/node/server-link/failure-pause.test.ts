import pino from 'pino'
import { expect, test } from 'vitest'
import { RolloutError, type FailureCode } from '../../model/failure.ts'
import { FailurePause } from './failure-pause.ts'

class PauseFixture {
  now = 0
  readonly pause = new FailurePause(() => this.now, pino({ level: 'silent' }))

  end(taskId: string, code?: FailureCode): void {
    this.pause.note({ taskId, failure: code && new RolloutError(code, 'It failed.').failure })
  }
}

test('FailurePause pauses after failures of several tasks in a row, longer each time, until a session succeeds', () => {
  const fixture = new PauseFixture()
  for (const task of ['a', 'b', 'c', 'a', 'b']) fixture.end(task, 'runtime.start-failed')
  expect(fixture.pause.maxSessions).toBe(Infinity)
  fixture.end('c', 'runtime.start-failed')
  expect(fixture.pause).toMatchObject({ maxSessions: 0, isPaused: true })
  fixture.now += 10_000
  expect(fixture.pause.maxSessions).toBe(1)
  fixture.end('a', 'upstream.unreachable')
  fixture.now += 10_000
  expect(fixture.pause.maxSessions).toBe(0)
  fixture.now += 10_000
  expect(fixture.pause.maxSessions).toBe(1)
  fixture.end('a')
  expect(fixture.pause.maxSessions).toBe(Infinity)
})

test('FailurePause ignores failures of a single task and failures that the policy caused', () => {
  const fixture = new PauseFixture()
  for (let i = 0; i < 50; i++) fixture.end('bad', 'runtime.image-missing')
  for (let i = 0; i < 50; i++) fixture.end(`task-${i}`, 'harness.exit-nonzero')
  for (let i = 0; i < 50; i++) fixture.end(`task-${i}`, i % 5 === 0 ? undefined : 'runtime.gone')
  expect(fixture.pause.maxSessions).toBe(Infinity)
})

test('noteUnwritable() starts a pause at once', () => {
  const fixture = new PauseFixture()
  fixture.pause.noteUnwritable()
  expect(fixture.pause.maxSessions).toBe(0)
})
