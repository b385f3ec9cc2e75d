import { sql } from 'kysely'
import type { PauseMode, PolicyState } from '../../../model/policy.ts'
import type { Sql } from '../../database.ts'
import { POLICY_CHANNEL, type PolicyNotice } from '../internal/policy-channel.ts'
import { getPolicy } from '../queries/policy.ts'

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
