import { cp, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { inScratch, intentOf, OPENING } from '../store.contract.ts'
import type { SessionLog } from '../store.ts'
import { createCallLogReader } from './reader.ts'
import { createCallLogStore } from './store.ts'

/** Copies the folder as a killed writer would leave it. */
async function crashed(dir: string, name: string): Promise<string> {
  const copy = join(dir, '..', name)
  await mkdir(join(copy, OPENING.id), { recursive: true })
  await cp(join(dir, OPENING.id, 'calls.plog'), join(copy, OPENING.id, 'calls.plog'))
  return copy
}

async function begin(dir: string): Promise<SessionLog> {
  const log = await createCallLogStore({ dir }).open(OPENING)
  log.appendIntent(intentOf('ended', 0, 'hello'))
  log.appendIntent(intentOf('in-flight', 1, 'hello again'))
  await log.appendEnd({ turnId: 'ended', endedAt: 2, forced: {} })
  return log
}

test('a log that its supervisor continues is complete: calls in flight are recorded as failed', async () => {
  await inScratch(async (scratch) => {
    const first = join(scratch, 'first')
    const left = await begin(first)
    const dir = await crashed(first, 'second')
    await left.close()
    const store = createCallLogStore({ dir, now: () => 77 })
    const log = await store.open({ ...OPENING, isContinued: true })
    expect(log.turns).toBe(2)
    log.appendIntent(intentOf('later', 2, 'hello'))
    await log.appendEnd({ turnId: 'later', endedAt: 80, forced: {} })
    await log.close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session).toMatchObject({ ...OPENING, complete: true, incompleteReasons: [] })
    expect(session.turns.map(({ id, endedAt, failure }) => [id, endedAt, failure?.code])).toEqual([
      ['ended', 2, undefined],
      ['in-flight', 77, 'session.gateway-lost'],
      ['later', 80, undefined],
    ])
  })
})

test('an earlier unclean end still makes the log incomplete', async () => {
  await inScratch(async (scratch) => {
    const first = join(scratch, 'first')
    const left = await begin(first)
    const second = await crashed(first, 'second')
    const leftToo = await createCallLogStore({ dir: second }).open(OPENING)
    const third = await crashed(second, 'third')
    await Promise.all([left.close(), leftToo.close()])
    const log = await createCallLogStore({ dir: third }).open({ ...OPENING, isContinued: true })
    await log.close()
    const { complete, incompleteReasons } = await createCallLogReader({ dir: third }).load(OPENING.id)
    expect(complete).toBe(false)
    expect(incompleteReasons).toEqual([expect.stringContaining('an earlier writer stopped without closing the log')])
  })
})
