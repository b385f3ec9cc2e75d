import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { Kysely, sql, type Transaction } from 'kysely'
import { acquireLockFile, identifyProcess, type LockFile } from '../lib/fs/lock-file.ts'
import { RolloutError } from '../model/failure.ts'
import { migrate } from './database/migrations.ts'
import { pgliteDialect } from './database/pglite-dialect.ts'
import { openPostgres } from './database/postgres.ts'
import { BY_INDEX } from './database/statement-names.ts'
import type { Tables } from './database/tables.ts'

/**
 * `dir`: PostgreSQL runs inside this process (PGlite): nothing to install, one server. The data survives a killed process at
 * any moment, but not a loss of power, because commits do not wait for the disk.
 */
export type DatabaseLocation = { dir: string } | { url: string; connections?: number }

export interface Database extends AsyncDisposable {
  kind: 'embedded' | 'postgres'
  db: Kysely<Tables>
  /**
   * Calls the listener with the payload of each `pg_notify` on the channel, from any server; after a lost connection with an
   * empty payload, because notifications may have been missed. Resolves with the function that stops listening.
   */
  listen(channel: string, listener: (payload: string) => void): Promise<() => Promise<void>>
  /** Must be called every few minutes: frees the space of updated rows where no autovacuum does. */
  maintain(): Promise<void>
}

export type Sql = Kysely<Tables> | Transaction<Tables>

/** Type id of 64-bit integers; stored values stay far below 2^53. */
const INT8 = 20

/** Opens the database and runs the migrations. */
export async function openDatabase(location: DatabaseLocation): Promise<Database> {
  const database = 'dir' in location ? await openEmbedded(location.dir) : await openPostgres(location)
  try {
    await migrate(database.db)
    return database
  } catch (error) {
    await database[Symbol.asyncDispose]()
    throw error
  }
}

async function openEmbedded(dir: string): Promise<Database> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const lock = await lockDirectory(dir)
  try {
    const { PGlite } = await import('@electric-sql/pglite')
    const pglite = await PGlite.create({ dataDir: join(dir, 'pglite'), parsers: { [INT8]: Number } })
    await pglite.exec(BY_INDEX)
    const db = new Kysely<Tables>({ dialect: pgliteDialect(pglite) })
    return {
      kind: 'embedded',
      db,
      // On a connection of its own: a rolled back transaction would undo the LISTEN.
      listen: (channel, listener) => db.connection().execute(() => pglite.listen(channel, listener)),
      // PGlite has no autovacuum worker.
      maintain: () =>
        db.connection().execute(async (connection) => void (await sql`vacuum (analyze)`.execute(connection))),
      async [Symbol.asyncDispose]() {
        await db.destroy()
        await lock.release()
      },
    }
  } catch (error) {
    await lock.release()
    throw new RolloutError('store.unavailable', `The database in ${dir} could not be opened.`, { cause: error })
  }
}

/** PGlite takes no lock: two processes would silently overwrite each other's rows. */
async function lockDirectory(dir: string): Promise<LockFile> {
  const outcome = await acquireLockFile(join(dir, 'LOCK'), await identifyProcess())
  if ('lock' in outcome) return outcome.lock
  const holder =
    outcome.heldBy === undefined ? 'Another process' : `Process ${outcome.heldBy.pid} on ${outcome.heldBy.host}`
  throw new RolloutError(
    'store.unavailable',
    `${holder} has the database in ${dir} open; stop that process, choose another directory, or use PostgreSQL for several servers.`,
  )
}
