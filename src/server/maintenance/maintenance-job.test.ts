import pino from 'pino'
import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { startChores } from './maintenance-job.ts'

test('are done again and again, one time after the other, also after they failed', async () => {
  const clock = new FakeClock()
  const said: string[] = []
  const logger = pino({ level: 'warn' }, { write: (line) => void said.push(line) })
  let times = 0
  let atOnce = 0
  const work = async () => {
    expect(++atOnce).toBe(1)
    await clock.sleep(300)
    atOnce -= 1
    if (++times === 2) throw new Error('not now')
  }
  const chores = startChores([{ name: 'sweep', everyMs: 100, work }], { clock, logger })
  await clock.advance(2000)
  expect(times).toBe(5)
  expect(said.map((line) => (JSON.parse(line) as { chore: string }).chore)).toEqual(['sweep'])
  await clock.run(Promise.resolve(chores[Symbol.asyncDispose]()))
  await clock.advance(5000)
  expect(times).toBe(5)
  expect(clock.pending).toBe(0)
})

test('one under way is waited for when they end', async () => {
  const clock = new FakeClock()
  let isDone = false
  const work = async () => {
    await clock.sleep(500)
    isDone = true
  }
  const chores = startChores([{ name: 'slow', everyMs: 10, work }], { clock, logger: pino({ level: 'silent' }) })
  await clock.advance(20)
  await clock.run(Promise.resolve(chores[Symbol.asyncDispose]()))
  expect(isDone).toBe(true)
})
