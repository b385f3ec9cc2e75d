import { sql } from 'kysely'
import type { Sql } from '../database.ts'

export interface NewEvent {
  type: 'task.created' | 'task.updated' | 'task.completed' | 'session.state_changed'
  data: Readonly<Record<string, unknown>>
}

export interface StoredEvent {
  /** Goes up from event to event, as text; what a reader comes back with to hear what followed. */
  cursor: string
  type: string
  data: Readonly<Record<string, unknown>>
  /** Unix milliseconds. */
  ts: number
}

/** For `json_to_recordset(…) as e(type text, data text)`. */
export function toEventRows(events: readonly NewEvent[]): string {
  return JSON.stringify(events.map(({ type, data }) => ({ type, data: JSON.stringify(data) })))
}

export async function writeEvents(db: Sql, events: readonly NewEvent[], now: number): Promise<void> {
  if (events.length === 0) return
  await sql`
    insert into events (type, data, ts)
    select e.type, e.data, ${now}::float8 from json_to_recordset(${toEventRows(events)}::json) as e(type text, data text)
  `.execute(db)
}

/**
 * What happened after `cursor`, or from the beginning. Transactions do not end in the order in which they took their
 * numbers, so a reader that went by the events' own numbers would miss those that appear behind its back. These are
 * ordered by the transaction's number, and only given out once no older transaction is under way.
 */
export async function readEvents(db: Sql, cursor: string | undefined, limit: number): Promise<StoredEvent[]> {
  const { txid, id } = parseCursor(cursor)
  const { rows } = await sql<{ txid: number; id: number; type: string; data: string; ts: number }>`
    select txid, id, type, data, ts from events
    where (txid, id) > (${txid}::bigint, ${id}::bigint)
      and txid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    order by txid, id limit ${limit}::int
  `.execute(db)
  return rows.map((row) => ({
    cursor: `${row.txid}-${row.id}`,
    type: row.type,
    data: JSON.parse(row.data) as Record<string, unknown>,
    ts: row.ts,
  }))
}

/** One that is not ours reads from the beginning: a reader that hears too much loses nothing. */
function parseCursor(cursor = ''): { txid: number; id: number } {
  const [, txid, id] = /^(\d{1,15})-(\d{1,15})$/.exec(cursor) ?? []
  return { txid: Number(txid ?? 0), id: Number(id ?? 0) }
}
