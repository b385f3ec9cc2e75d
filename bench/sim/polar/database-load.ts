import type { KyselyPlugin } from 'kysely'
import type { Database } from '../../../src/store/database.ts'

export interface OperationLoad {
  calls: number
  statements: number
  /** Real milliseconds, of the whole call. */
  ms: number
  longestMs: number
}

/** Counts and times the statements of each operation. `begin` and `commit` are timed but not counted. */
export class DatabaseLoad {
  readonly byOperation = new Map<string, OperationLoad>()
  #current: OperationLoad | undefined

  /** The same database with a plugin that counts statements. */
  watch(database: Database): Database {
    return { ...database, db: database.db.withPlugin(this.#plugin()) }
  }

  /** One operation at a time. */
  async measure<T>(operation: string, work: () => Promise<T>): Promise<T> {
    const load = this.byOperation.get(operation) ?? { calls: 0, statements: 0, ms: 0, longestMs: 0 }
    this.byOperation.set(operation, load)
    this.#current = load
    load.calls += 1
    const begun = performance.now()
    try {
      return await work()
    } finally {
      const ms = performance.now() - begun
      load.ms += ms
      load.longestMs = Math.max(load.longestMs, ms)
      this.#current = undefined
    }
  }

  #plugin(): KyselyPlugin {
    return {
      transformQuery: ({ node }) => {
        if (this.#current !== undefined) this.#current.statements += 1
        return node
      },
      transformResult: ({ result }) => Promise.resolve(result),
    }
  }
}
