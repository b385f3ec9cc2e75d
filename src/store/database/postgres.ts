import { Kysely, PostgresDialect, type PostgresPool, type PostgresPoolClient } from 'kysely'
import type { Client, Pool, PoolClient } from 'pg'
import type { Database } from '../database.ts'
import { BY_INDEX, createStatementNames } from './statement-names.ts'
import type { Tables } from './tables.ts'

/** Type id of 64-bit integers; stored values stay far below 2^53. */
const INT8 = 20
const DEFAULT_CONNECTIONS = 10
/** Limit for getting a connection, new or released by another caller. */
const CONNECT_TIMEOUT_MS = 10_000

/** A PostgreSQL server that several Polar servers may share. */
export async function openPostgres({ url, connections }: { url: string; connections?: number }): Promise<Database> {
  const { default: pg } = await import('pg')
  const types: typeof pg.types = Object.create(pg.types, {
    getTypeParser: {
      value: (oid: number, format?: 'text' | 'binary') =>
        oid === INT8 && format !== 'binary' ? Number : pg.types.getTypeParser(oid, format),
    },
  }) as typeof pg.types
  const pool = new pg.Pool({
    connectionString: url,
    max: connections ?? DEFAULT_CONNECTIONS,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    types,
  })
  // The pool replaces a broken connection and rejects its query, but also emits the error here, and an unhandled `error`
  // event would end the process.
  pool.on('error', () => undefined)
  pool.on('connect', (client) => client.on('error', () => undefined))
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: preparing(pool) }) })
  return {
    kind: 'postgres',
    db,
    listen: (channel, listener) => listenPostgres(() => new pg.Client({ connectionString: url }), channel, listener),
    maintain: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => db.destroy(),
  }
}

/**
 * Runs statements as named prepared statements, so that every connection parses and plans each of them once. Returns the same
 * object for the same connection: kysely runs its setup for every object that it has not seen, which is a round trip.
 */
function preparing(pool: Pool): PostgresPool {
  const nameOf = createStatementNames()
  const known = new WeakMap<PoolClient, PostgresPoolClient>()
  return {
    async connect() {
      const client = await pool.connect()
      const seen = known.get(client)
      if (seen !== undefined) return seen
      try {
        // Not in kysely's connection hook, which never releases a connection that breaks in it.
        await client.query(BY_INDEX)
      } catch (error) {
        client.release(true)
        throw error
      }
      const wrapped = {
        query: (text: string, values: readonly unknown[]) =>
          client.query({ name: nameOf(text), text, values: [...values] }),
        release: (destroy?: boolean) => client.release(destroy),
      } as unknown as PostgresPoolClient
      known.set(client, wrapped)
      return wrapped
    },
    end: () => pool.end(),
    options: pool.options,
  }
}

/** Delay before listening again on a new connection. */
const RELISTEN_MS = 500

/** Listens on a dedicated connection, and on a new one when it breaks; then calls the listener, as notifications were missed. */
async function listenPostgres(
  createClient: () => Client,
  channel: string,
  listener: (payload: string) => void,
): Promise<() => Promise<void>> {
  let isStopped = false
  let timer: NodeJS.Timeout | undefined
  let current: Client | undefined
  const reconnect = (): void => {
    current = undefined
    if (!isStopped) timer ??= setTimeout(() => void connect().then(() => listener(''), reconnect), RELISTEN_MS)
  }
  const connect = async (): Promise<void> => {
    timer = undefined
    const client = createClient()
    client.on('notification', ({ payload }) => listener(payload ?? ''))
    client.on('error', () => undefined)
    await client.connect()
    await client.query(`listen ${channel}`)
    client.on('end', reconnect)
    current = client
    if (isStopped) await client.end()
  }
  await connect()
  return async () => {
    isStopped = true
    clearTimeout(timer)
    await current?.end()
  }
}
