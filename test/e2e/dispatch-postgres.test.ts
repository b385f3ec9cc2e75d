import { afterAll, test } from 'vitest'
import { openDatabase } from '../../src/store/database.ts'
import { describeDispatch } from '../../src/store/dispatch/port.contract.ts'
import { startPostgres, whyNoPostgres } from '../support/postgres.ts'

const reason = whyNoPostgres()
if (reason !== undefined) {
  test('dispatch on PostgreSQL', (context) => context.skip(`stands for 94 tests: ${reason}`))
} else {
  const postgres = await startPostgres()
  afterAll(() => postgres[Symbol.asyncDispose]())
  describeDispatch('PostgreSQL', async () => openDatabase({ url: await postgres.createDatabase('contract') }))
}
