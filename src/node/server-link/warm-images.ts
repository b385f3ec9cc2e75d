import { affinityOf } from '../../model/affinity.ts'
import type { TaskRequest } from '../../model/task.ts'

/** Limits the keys that a lease request sends. A node's disk rarely holds more images. */
const MAX_KEYS = 128

/** The images and workspaces of the latest sandboxes on this node, oldest first. */
export class WarmImages {
  readonly #keys = new Set<string>()

  add(task: Pick<TaskRequest, 'runtime'>): void {
    for (const key of affinityOf(task)) {
      this.#keys.delete(key)
      this.#keys.add(key)
    }
    for (const key of this.#keys) {
      if (this.#keys.size <= MAX_KEYS) return
      this.#keys.delete(key)
    }
  }

  keys(): readonly string[] {
    return [...this.#keys]
  }
}
