import { createHash } from 'node:crypto'
import type { TaskRequest } from './task.ts'

/** What a label may be made of; an image whose name has more in it has no label. */
const LABEL = /^[A-Za-z0-9][A-Za-z0-9_.:/@=+-]{0,255}$/

/**
 * What had better be warm where a task runs, as labels: its image, and what its sandboxes are prepared with. Two tasks with
 * the same workspace begin from the same snapshot on a node that has one.
 */
export function affinityOf({ runtime }: Pick<TaskRequest, 'runtime'>): string[] {
  if (runtime == null) return []
  const { image, prepare, workdir, env } = runtime
  const keys = image == null ? [] : [`image:${image}`]
  if (prepare.length > 0) {
    const made = JSON.stringify([image ?? null, workdir ?? null, env, prepare])
    keys.push(`workspace:${createHash('sha256').update(made).digest('hex').slice(0, 32)}`)
  }
  return keys.filter((key) => LABEL.test(key))
}
