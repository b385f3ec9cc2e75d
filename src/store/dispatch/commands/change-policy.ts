import { sql } from 'kysely'
import type { PauseMode, PolicyState } from '../../../model/policy.ts'
import type { Sql } from '../../database.ts'
import { POLICY_CHANNEL, type PolicyNotice } from '../internal/policy-channel.ts'
import { getPolicy } from '../queries/policy.ts'
import { cancelTask } from './cancel.ts'

/** Absent fields stay as they are. */
export interface PolicyChange {
  /** An older version than the current one has no effect. */
  version?: number
  paused?: boolean
  mode?: PauseMode
}

/** `change` of the state increases only if another field changes. Returns the current state. */
export async function changePolicy(db: Sql, { version, paused, mode }: PolicyChange): Promise<PolicyState> {
  const notice: PolicyNotice = 'state'
  await sql`
    with wanted as (
      select ${version ?? null}::int as version, ${paused ?? null}::boolean as paused, ${mode ?? null}::text as mode
    ), changed as (
      update policy set version = greatest(policy.version, wanted.version), is_set = is_set or wanted.version is not null,
        is_paused = coalesce(wanted.paused, is_paused), mode = coalesce(wanted.mode, policy.mode), change = change + 1
      from wanted
      where wanted.version > policy.version or (wanted.version is not null and not is_set)
        or wanted.paused <> is_paused or wanted.mode <> policy.mode
      returning change
    )
    select pg_notify(${POLICY_CHANNEL}, ${notice}::text) from changed
  `.execute(db)
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
