import { createHash } from 'node:crypto'
import type { TaskRequest } from './task.ts'

/** Characters of a label. An image name with other characters gets no label. */
const LABEL = /^[A-Za-z0-9][A-Za-z0-9_.:/@=+-]{0,255}$/

/**
 * Returns labels of the cached data that speeds up a task on a node: its image and its prepared workspace. Tasks with the same
 * workspace label start from the same snapshot, if the node has one.
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
