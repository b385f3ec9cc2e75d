import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

export interface StoredEvent {
  /** Position of the event; a reader passes it to read the events that follow. */
  cursor: string
  type: string
  data: Readonly<Record<string, unknown>>
  /** Unix milliseconds. */
  ts: number
}

export interface EventPage {
  events: StoredEvent[]
  /** Cursor of the next page: after the last event, or after all events that the filter skipped. */
  next: string
  /** There are more events, but an older transaction still runs; read again soon. */
  isBehind: boolean
}

/**
 * Reads the events after a cursor, or from the beginning. Transactions do not commit in the order of their ids, so a reader
 * that orders by event id would miss events of late commits. Events are ordered by transaction id, and an event is returned
 * only when no older transaction is running.
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
  // The cursor points at an existing event, never at the oldest running transaction: after a crash PostgreSQL assigns ids of
  // transactions that wrote nothing again, and their events would be skipped.
  const isAhead = lastTxid !== null && (lastTxid > from.txid || (lastTxid === from.txid && lastId > from.id))
  return { events, next: isAhead ? `${lastTxid}-${lastId}` : `${from.txid}-${from.id}`, isBehind }
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

/** Returns the cursor after the newest readable event. */
export async function newestCursor(db: Sql): Promise<string> {
  const { rows } = await sql<{ txid: number; id: number }>`
    select txid, id from events where txid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    order by txid desc, id desc limit 1
  `.execute(db)
  const [last] = rows
  return last === undefined ? '0-0' : `${last.txid}-${last.id}`
}

/** An unknown cursor reads from the beginning: duplicates are harmless, a gap is not. */
function parseCursor(cursor = ''): { txid: number; id: number } {
  const [, txid, id] = /^(\d{1,15})-(\d{1,15})$/.exec(cursor) ?? []
  return { txid: Number(txid ?? 0), id: Number(id ?? 0) }
}
