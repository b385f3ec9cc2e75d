import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { zstdCompressSync } from 'node:zlib'
import pino from 'pino'
import { afterAll, expect, test } from 'vitest'
import { copyDatabase } from '../../../test/support/database-template.ts'
import { DispatchDriver, makeOutcome, makeTask } from '../../../test/support/dispatch-driver.ts'
import { systemClock } from '../../lib/async/clock.ts'
import type { FailureCode } from '../../model/failure.ts'
import { openDatabase } from '../../store/database.ts'
import type { Lease } from '../../store/dispatch/port.ts'
import { openFileStore } from '../../store/files.ts'
import { openTaskResult } from './results.ts'

const dir = await mkdtemp(join(tmpdir(), 'polar-results-'))
await copyDatabase(join(dir, 'database'))
const database = await openDatabase({ dir: join(dir, 'database') })
const files = await openFileStore({ dir: join(dir, 'files'), clock: systemClock })
const driver = new DispatchDriver(database)
const deps = { dispatch: driver.dispatch, files, logger: pino({ level: 'silent' }) }
afterAll(async () => {
  await database[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true })
})

async function end(lease: Lease, code?: FailureCode): Promise<void> {
  const text = zstdCompressSync(JSON.stringify({ session_id: lease.sessionId, attempt: lease.attempt }))
  const result = await files.put(lease.sessionId, lease.attempt, text)
  expect(await driver.dispatch.accept(makeOutcome(lease, code), result)).toMatchObject({ kind: 'accepted' })
}

async function read(stream: AsyncIterable<Uint8Array> | undefined): Promise<unknown> {
  return JSON.parse(Buffer.concat(await Array.fromAsync(stream!)).toString())
}

test('a retried task has no final result, also for a reader that had already opened it', async () => {
  await driver.clear()
  await driver.dispatch.enqueue([{ task: makeTask('t', 2), maxFailures: 1 }])
  const [a, b] = await driver.take(2)
  await end(a!, 'runtime.gone')
  expect(await openTaskResult('t', deps)).toBeUndefined()
  await end(b!)
  const first = await read(await openTaskResult('t', deps))
  expect(first).toMatchObject({
    status: 'completed',
    results: [{ session_id: a!.sessionId, attempt: 1 }, { session_id: b!.sessionId }],
  })
  const opened = await openTaskResult('t', deps)
  expect(await driver.dispatch.retryTask('t', ['ERROR'])).toMatchObject({ kind: 'retried', sessions: 1 })
  await expect(read(opened)).rejects.toMatchObject({ code: 'request.conflict' })
  expect(await openTaskResult('t', deps)).toBeUndefined()
  const [again] = await driver.take(1)
  await end(again!)
  expect(await read(await openTaskResult('t', deps))).toMatchObject({
    status: 'completed',
    results: [{ session_id: a!.sessionId, attempt: 2 }, { session_id: b!.sessionId }],
  })
})
