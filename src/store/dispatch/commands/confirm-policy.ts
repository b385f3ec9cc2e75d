import { sql } from 'kysely'
import type { Sql } from '../../database.ts'
import { toMembership } from '../internal/membership.ts'
import { POLICY_CHANNEL, type PolicyNotice } from '../internal/policy-channel.ts'
import type { NodeMembership, PolicyConfirmation } from '../types.ts'

/** Stores what the gateway of a node has applied. A replaced process cannot confirm. */
export async function confirmPolicy(
  db: Sql,
  nodeId: string,
  { bootId, change, version, inFlight }: PolicyConfirmation,
): Promise<NodeMembership> {
  const notice: PolicyNotice = 'nodes'
  const { rows } = await sql<{ draining: boolean | null; is_replaced: boolean | null }>`
    with confirmed as (
      update nodes set policy_change = ${change}::int, policy_version = ${version}::int, in_flight = ${inFlight}::int
      where id = ${nodeId} and boot_id = ${bootId} and (policy_change is distinct from ${change}::int
        or policy_version is distinct from ${version}::int or in_flight is distinct from ${inFlight}::int)
      returning id
    ), told as materialized (
      select pg_notify(${POLICY_CHANNEL}, ${notice}::text) from confirmed
    )
    select node.draining, node.boot_id is distinct from ${bootId}::text as is_replaced, (select count(*) from told) as told
    from (select 1) one left join nodes node on node.id = ${nodeId}
  `.execute(db)
  const { draining, is_replaced } = rows[0]!
  return toMembership(draining, is_replaced)
}
