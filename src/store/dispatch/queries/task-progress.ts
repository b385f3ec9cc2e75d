import type { Sql } from '../../database.ts'
import type { TaskState } from '../../database/tables.ts'

/** The counters that long polls read again and again. */
export interface TaskProgress {
  taskId: string
  status: TaskState
  need: number
  ended: number
  /** Position of the last ending. */
  endings: number
}

/** Undefined if the task does not exist or was deleted. */
export async function findProgress(db: Sql, taskId: string): Promise<TaskProgress | undefined> {
  return db
    .selectFrom('tasks')
    .select(['id as taskId', 'status', 'need', 'ended', 'endings'])
    .where('id', '=', taskId)
    .where('is_tombstone', '=', false)
    .executeTakeFirst()
}
