import { type PGlite, parse, protocol } from '@electric-sql/pglite'
import {
  CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  type QueryResult,
} from 'kysely'
import { createStatementNames } from './statement-names.ts'

/**
 * PGlite behind kysely. It has one connection, so whoever wants to use it waits for the one before, from the first
 * statement of a transaction to its last. kysely's own dialect for it does not wait: what others ask for while a
 * transaction is open becomes a part of it.
 */
export function pgliteDialect(pglite: PGlite): Dialect {
  return {
    createAdapter: () => new PostgresAdapter(),
    createDriver: () => createDriver(pglite),
    createIntrospector: (db) => new PostgresIntrospector(db),
    createQueryCompiler: () => new PostgresQueryCompiler(),
  }
}

function createDriver(pglite: PGlite): Driver {
  const executeQuery = preparing(pglite)
  const connection: DatabaseConnection = {
    executeQuery,
    // oxlint-disable-next-line require-yield -- the interface has it, and PGlite has no cursors
    async *streamQuery() {
      throw new Error('PGlite does not stream')
    },
  }
  const waiting: (() => void)[] = []
  let isTaken = false
  const run = (statement: string) => connection.executeQuery(CompiledQuery.raw(statement)).then(() => undefined)
  return {
    async init() {},
    acquireConnection() {
      if (isTaken) return new Promise((resolve) => waiting.push(() => resolve(connection)))
      isTaken = true
      return Promise.resolve(connection)
    },
    async releaseConnection() {
      const next = waiting.shift()
      if (next === undefined) isTaken = false
      else next()
    },
    beginTransaction: () => run('begin'),
    commitTransaction: () => run('commit'),
    rollbackTransaction: () => run('rollback'),
    destroy: () => pglite.close(),
  }
}

/**
 * Runs statements by name, so that each is read and planned once and not every time: that is most of the cost of a short
 * one. What is sent goes as text, as it is written in SQL; the casts in our statements say what it is.
 */
function preparing(pglite: PGlite): DatabaseConnection['executeQuery'] {
  const nameOf = createStatementNames()
  const prepared = new Set<string>()
  const { serialize } = protocol
  return async <Row>({ sql, parameters }: CompiledQuery): Promise<QueryResult<Row>> => {
    const name = nameOf(sql) ?? ''
    const values = parameters.map((value) => toText(value as Value))
    const { messages } = await pglite.execProtocol(
      Buffer.concat([
        ...(prepared.has(name) ? [] : [serialize.parse({ name, text: sql })]),
        serialize.bind({ statement: name, values }),
        serialize.describe({ type: 'P' }),
        serialize.execute({}),
        serialize.sync(),
      ]),
    )
    if (name !== '') prepared.add(name)
    const { rows = [], affectedRows } = parse.parseResults(messages, pglite.parsers).at(-1) ?? {}
    return { rows: rows as Row[], numAffectedRows: BigInt(affectedRows ?? 0) }
  }
}

/** All that our statements are given. */
type Value = string | number | boolean | null | undefined

function toText(value: Value): string | null {
  return value === null || value === undefined ? null : String(value)
}
