import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sql } from 'kysely'
import { expect, onTestFinished, test } from 'vitest'
import { DispatchDriver } from '../../../test/support/dispatch-driver.ts'
import { openDatabase } from '../database.ts'

test('migration 0002 sets ended_at and bytes of tasks that had already ended', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'polar-migrations-'))
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  {
    await using database = await openDatabase({ dir })
    const driver = new DispatchDriver(database)
    await driver.clear()
    await driver.submit('over', 2)
    for (const lease of await driver.take(2)) {
      const artifact = { path: 'a', storedPath: `artifacts/${lease.sessionId}`, bytes: 5, digest: 'd', isCut: false }
      await driver.end(lease, undefined, {}, [artifact])
    }
    await driver.submit('running', 1)
    await driver.dispatch.cancelTask('early', { registerIfMissing: true })
    const { db } = database
    await sql`alter table tasks drop column ended_at, drop column bytes, drop column deleted_at`.execute(db)
    await sql`drop index if exists tasks_ended`.execute(db)
    await sql`drop index if exists tasks_to_clear`.execute(db)
    await sql`alter table tasks drop column run, drop column submit_key`.execute(db)
    await sql`update policy set version = 5`.execute(db)
    await sql`alter table policy drop column is_set, drop column is_paused, drop column mode, drop column change`.execute(
      db,
    )
    await sql`alter table nodes drop column policy_change, drop column policy_version, drop column in_flight`.execute(
      db,
    )
    await sql`alter table sessions drop column oldest_version`.execute(db)
    await sql`delete from polar_migrations where name >= '0002-deleted-tasks'`.execute(db)
  }
  await using database = await openDatabase({ dir })
  const rows = await database.db.selectFrom('tasks').select(['id', 'ended_at', 'bytes']).orderBy('id').execute()
  expect(rows).toEqual([
    { id: 'early', ended_at: null, bytes: 0 },
    { id: 'over', ended_at: 1_000_000, bytes: 30 },
    { id: 'running', ended_at: null, bytes: 0 },
  ])
  const driver = new DispatchDriver(database)
  // Migration 0004: only a version that a trainer has set is given to nodes.
  expect(await driver.dispatch.policy.get()).toEqual({ change: 0, version: 5, paused: false, mode: 'drain' })
  driver.wall += 1000
  expect(await driver.dispatch.retire({ olderThanMs: 10, keepAtLeastMs: 0 })).toEqual(['over'])
})
