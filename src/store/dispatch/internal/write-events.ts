import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

export interface NewEvent {
  type: 'task.created' | 'task.updated' | 'task.completed' | 'task.deleted' | 'session.state_changed'
  data: Readonly<Record<string, unknown>> & { task_id: string }
}

/** Data of the `task.updated` event of a running task; the field names are NVIDIA Polar's. */
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
