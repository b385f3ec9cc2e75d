import type { Sql } from '../../store/database.ts'
import type { TaskWord } from '../../store/database/tables.ts'

/** How far a task is: what those who wait for it look at, again and again. */
export interface TaskProgress {
  taskId: string
  status: TaskWord
  need: number
  ended: number
  /** The place of the last ending. */
  endings: number
}

export async function findProgress(db: Sql, taskId: string): Promise<TaskProgress | undefined> {
  return db
    .selectFrom('tasks')
    .select(['id as taskId', 'status', 'need', 'ended', 'endings'])
    .where('id', '=', taskId)
    .where('is_tombstone', '=', false)
    .executeTakeFirst()
}
