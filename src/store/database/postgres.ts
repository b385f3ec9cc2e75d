import { Kysely, PostgresDialect, type PostgresPool, type PostgresPoolClient } from 'kysely'
import type { Client, Pool, PoolClient } from 'pg'
import type { Database } from '../database.ts'
import { BY_INDEX, createStatementNames } from './statement-names.ts'
import type { Tables } from './tables.ts'

/** A 64-bit integer; ours stay far below 2^53. */
const INT8 = 20
const DEFAULT_CONNECTIONS = 10
/** To get a connection, be it a new one or one that another caller gives back. */
const CONNECT_TIMEOUT_MS = 10_000

/** A server somewhere, which several of ours may share. */
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
  // One that breaks is replaced, and whoever waits for an answer on it is told; but each says so here as well, and an
  // error that nobody hears ends the process.
  pool.on('error', () => undefined)
  pool.on('connect', (client) => client.on('error', () => undefined))
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: preparing(pool) }) })
  return {
    kind: 'postgres',
    db,
    listen: (channel, call) => listenPostgres(() => new pg.Client({ connectionString: url }), channel, call),
    maintain: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => db.destroy(),
  }
}

/**
 * Statements by name, so that every connection reads and plans each of them once. A connection is always the same object:
 * kysely sets up each one that it has not seen before, which would be another round trip for every statement.
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
        // Not by kysely's hook for it, which keeps a connection for ever that breaks just then.
        await client.query(BY_INDEX)
      } catch (error) {
        client.release(true)
        throw error
      }
      const made = {
        query: (text: string, values: readonly unknown[]) =>
          client.query({ name: nameOf(text), text, values: [...values] }),
        release: (destroy?: boolean) => client.release(destroy),
      } as unknown as PostgresPoolClient
      known.set(client, made)
      return made
    },
    end: () => pool.end(),
    options: pool.options,
  }
}

/** Waits between two tries to listen again. */
const RELISTEN_MS = 500

/** On a connection of its own, and on another one when that breaks. What was announced in between counts as announced. */
async function listenPostgres(
  createClient: () => Client,
  channel: string,
  call: (payload: string) => void,
): Promise<() => Promise<void>> {
  let isStopped = false
  let timer: NodeJS.Timeout | undefined
  let current: Client | undefined
  const again = (): void => {
    current = undefined
    if (!isStopped) timer ??= setTimeout(() => void connect().then(() => call(''), again), RELISTEN_MS)
  }
  const connect = async (): Promise<void> => {
    timer = undefined
    const client = createClient()
    client.on('notification', ({ payload }) => call(payload ?? ''))
    client.on('error', () => undefined)
    await client.connect()
    await client.query(`listen ${channel}`)
    client.on('end', again)
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
