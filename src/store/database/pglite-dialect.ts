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
 * kysely dialect for PGlite. PGlite has one connection, so a transaction waits until the previous one has finished. kysely's
 * own dialect does not wait: statements of other callers become part of the open transaction.
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
    // oxlint-disable-next-line require-yield -- required by the interface; PGlite has no cursors
    async *streamQuery() {
      throw new Error('PGlite does not stream')
    },
  }
  const waiting: (() => void)[] = []
  let isBusy = false
  const run = (statement: string) => connection.executeQuery(CompiledQuery.raw(statement)).then(() => undefined)
  return {
    async init() {},
    acquireConnection() {
      if (isBusy) return new Promise((resolve) => waiting.push(() => resolve(connection)))
      isBusy = true
      return Promise.resolve(connection)
    },
    async releaseConnection() {
      const next = waiting.shift()
      if (next === undefined) isBusy = false
      else next()
    },
    beginTransaction: () => run('begin'),
    commitTransaction: () => run('commit'),
    rollbackTransaction: () => run('rollback'),
    destroy: () => pglite.close(),
  }
}

/**
 * Runs named prepared statements: parsing and planning is most of the cost of a short statement. Parameters are sent as text;
 * the casts in the statements define their types.
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

/** Parameter types that our statements use. */
type Value = string | number | boolean | null | undefined

function toText(value: Value): string | null {
  return value === null || value === undefined ? null : String(value)
}
