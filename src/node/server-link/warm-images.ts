import { affinityOf } from '../../model/affinity.ts'
import type { TaskRequest } from '../../model/task.ts'

/** More than a node's disk has room for; the server looks through all of them. */
const MOST = 128

/** Images and workspaces that sandboxes were lately made with here, the last ones last. */
export class Warmth {
  readonly #keys = new Set<string>()

  add(task: Pick<TaskRequest, 'runtime'>): void {
    for (const key of affinityOf(task)) {
      this.#keys.delete(key)
      this.#keys.add(key)
    }
    for (const key of this.#keys) {
      if (this.#keys.size <= MOST) return
      this.#keys.delete(key)
    }
  }

  keys(): readonly string[] {
    return [...this.#keys]
  }
}
