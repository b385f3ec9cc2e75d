import { sql } from 'kysely'
import type { Sql } from '../../database.ts'
import { getPolicy } from '../queries/policy.ts'
import { cancelTask } from './cancel.ts'

/** The version never decreases: an older one has no effect. Returns the current version. */
export async function advancePolicy(db: Sql, version: number): Promise<number> {
  await db.updateTable('policy').set({ version }).where('version', '<', version).execute()
  return getPolicy(db)
}

/** Cancels each stale task in its own transaction; the next call finds what a crash left. Returns the ids. */
export async function cancelStale(db: Sql, now: number): Promise<string[]> {
  const { rows } = await sql<{ id: string; policy_version: number; version: number }>`
    select tasks.id, policy_version, version from tasks, policy
    where status = 'running' and policy_version is not null and policy_version + staleness_limit < version
  `.execute(db)
  for (const { id, policy_version, version } of rows) {
    const reason = `The task was made for policy version ${policy_version}, which is too old: the current version is ${version}.`
    await cancelTask(db, id, now, { reason })
  }
  return rows.map(({ id }) => id)
}
