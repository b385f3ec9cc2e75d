import { sql } from 'kysely'
import type { SessionOutcome } from '../../../model/session-outcome.ts'
import type { Sql } from '../../database.ts'
import { cancelSession, cancelTask } from './cancel.ts'

/**
 * Cancels tasks that were made for a version that is too old, and running sessions with tokens that are too old, each in its
 * own transaction; the next call finds what a crash left. Returns the ids of the changed tasks.
 */
export async function cancelStale(db: Sql, now: number): Promise<string[]> {
  const tasks = await cancelStaleTasks(db, now)
  const { rows } = await sql<{ id: string; oldest_version: number; version: number }>`
    select sessions.id, oldest_version, version from sessions join tasks on tasks.id = task_id, policy
    where state = 'leased' and oldest_version + staleness_limit < version
  `.execute(db)
  const cancelled = []
  for (const { id, oldest_version: oldest, version } of rows) {
    const { taskId } = await cancelSession(db, id, now, toReason(oldest, version))
    if (taskId !== undefined) cancelled.push(taskId)
  }
  return [...new Set([...tasks, ...cancelled])]
}

async function cancelStaleTasks(db: Sql, now: number): Promise<string[]> {
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

/** Cancels the session of a result with tokens that are too old. Returns its task, or undefined if it is not stale. */
export async function cancelIfStale(db: Sql, outcome: SessionOutcome, now: number): Promise<string | undefined> {
  const oldest = outcome.counts?.oldestVersion
  if (oldest === undefined) return undefined
  // Only the attempt that holds the session: a late result must not cancel the attempt of another node.
  const { rows } = await sql<{ version: number }>`
    select version from sessions join tasks on tasks.id = task_id, policy
    where sessions.id = ${outcome.sessionId} and attempt = ${outcome.attempt} and node_id = ${outcome.nodeId}
      and state = 'leased' and ${oldest}::int + staleness_limit < version
  `.execute(db)
  const [row] = rows
  if (row === undefined) return undefined
  const { isCancelled, taskId } = await cancelSession(db, outcome.sessionId, now, toReason(oldest, row.version))
  return isCancelled ? taskId : undefined
}

function toReason(oldest: number, version: number): string {
  return `The session has tokens of policy version ${oldest}, which is too old: the current version is ${version}.`
}
