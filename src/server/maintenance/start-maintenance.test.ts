import pino from 'pino'
import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { startMaintenance } from './start-maintenance.ts'

test('startMaintenance() repeats a job without overlap, also after a failure', async () => {
  const clock = new FakeClock()
  const logged: string[] = []
  const logger = pino({ level: 'warn' }, { write: (line) => void logged.push(line) })
  let times = 0
  let running = 0
  const work = async () => {
    expect(++running).toBe(1)
    await clock.sleep(300)
    running -= 1
    if (++times === 2) throw new Error('not now')
  }
  const maintenance = startMaintenance([{ name: 'sweep', everyMs: 100, work }], { clock, logger })
  await clock.advance(2000)
  expect(times).toBe(5)
  expect(logged.map((line) => (JSON.parse(line) as { job: string }).job)).toEqual(['sweep'])
  await clock.run(Promise.resolve(maintenance[Symbol.asyncDispose]()))
  await clock.advance(5000)
  expect(times).toBe(5)
  expect(clock.pending).toBe(0)
})

test('disposing waits for a running job', async () => {
  const clock = new FakeClock()
  let isDone = false
  const work = async () => {
    await clock.sleep(500)
    isDone = true
  }
  const maintenance = startMaintenance([{ name: 'slow', everyMs: 10, work }], {
    clock,
    logger: pino({ level: 'silent' }),
  })
  await clock.advance(20)
  await clock.run(Promise.resolve(maintenance[Symbol.asyncDispose]()))
  expect(isDone).toBe(true)
})
