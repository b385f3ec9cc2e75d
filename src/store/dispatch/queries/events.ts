import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

export interface NewEvent {
  type: 'task.created' | 'task.updated' | 'task.completed' | 'task.deleted' | 'session.state_changed'
  data: Readonly<Record<string, unknown>> & { task_id: string }
}

export interface StoredEvent {
  /** Goes up from event to event, as text; what a reader comes back with to hear what followed. */
  cursor: string
  type: string
  data: Readonly<Record<string, unknown>>
  /** Unix milliseconds. */
  ts: number
}

export interface EventPage {
  events: StoredEvent[]
  /** Where to go on: behind the last of them, or behind all that was passed over. */
  next: string
  /** There are more that cannot be given out yet, because an older transaction is under way; look again soon. */
  isBehind: boolean
}

/** What is told of a task that goes on: field names are NVIDIA Polar's. */
export function toUpdate(taskId: string, { ended, need }: { ended: number; need: number }): NewEvent['data'] {
  return { task_id: taskId, status: 'running', completed_sessions: ended, total_sessions: need }
}

export async function writeEvents(db: Sql, events: readonly NewEvent[], now: number): Promise<void> {
  if (events.length === 0) return
  const rows = events.map(({ type, data }) => ({ type, task_id: data.task_id, data: JSON.stringify(data) }))
  await sql`
    insert into events (type, task_id, data, ts)
    select e.type, e.task_id, e.data, ${now}::float8
    from json_to_recordset(${JSON.stringify(rows)}::json) as e(type text, task_id text, data text)
  `.execute(db)
}

/**
 * What happened after a cursor, or from the beginning. Transactions do not end in the order in which they took their
 * numbers, so a reader that went by the events' own numbers would miss those that appear behind its back. These are
 * ordered by the transaction's number, and only given out once no older transaction is under way.
 */
export async function readEvents(
  db: Sql,
  { after, limit, taskId }: { after?: string; limit: number; taskId?: string },
): Promise<EventPage> {
  const from = parseCursor(after)
  const { rows } = await sql<PageRow>`
    with h as materialized (select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon), e as (
      select txid, id, type, data, ts from events
      where (txid, id) > (${from.txid}::bigint, ${from.id}::bigint) and txid < (select horizon from h)
        and (${taskId ?? null}::text is null or task_id = ${taskId ?? null}::text)
      order by txid, id limit ${limit}::int
    ), l as (
      select txid as last_txid, id as last_id from events where txid < (select horizon from h)
      order by txid desc, id desc limit 1
    )
    select l.last_txid, l.last_id, exists(select 1 from events where txid >= h.horizon) as is_behind, e.*
    from h left join l on true left join e on true order by e.txid, e.id
  `.execute(db)
  const events = rows.flatMap(({ txid, id, type, data, ts }) =>
    txid === null ? [] : [{ cursor: `${txid}-${id}`, type, data: JSON.parse(data) as StoredEvent['data'], ts }],
  )
  const { last_txid: lastTxid, last_id: lastId, is_behind: isBehind } = rows[0]!
  if (events.length >= limit) return { events, next: events.at(-1)!.cursor, isBehind }
  // Behind an event that is there, and never only behind the oldest transaction that is under way: numbers of those that
  // wrote nothing that lasts are given out again after a crash of the database, and their events would not be heard.
  const isPassed = lastTxid !== null && (lastTxid > from.txid || (lastTxid === from.txid && lastId > from.id))
  return { events, next: isPassed ? `${lastTxid}-${lastId}` : `${from.txid}-${from.id}`, isBehind }
}

interface PageRow {
  last_txid: number | null
  last_id: number
  is_behind: boolean
  txid: number | null
  id: number
  type: string
  data: string
  ts: number
}

/** For a reader that wants only what comes from now on. */
export async function newestCursor(db: Sql): Promise<string> {
  const { rows } = await sql<{ txid: number; id: number }>`
    select txid, id from events where txid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    order by txid desc, id desc limit 1
  `.execute(db)
  const [last] = rows
  return last === undefined ? '0-0' : `${last.txid}-${last.id}`
}

/** One that is not ours reads from the beginning: a reader that hears too much loses nothing. */
function parseCursor(cursor = ''): { txid: number; id: number } {
  const [, txid, id] = /^(\d{1,15})-(\d{1,15})$/.exec(cursor) ?? []
  return { txid: Number(txid ?? 0), id: Number(id ?? 0) }
}
