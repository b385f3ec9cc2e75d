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
 * Where the tables are. In a directory, PostgreSQL runs inside this process: nothing to install, one server. It survives
 * the end of the process at any moment, but not a loss of power, because it never waits for the disk.
 */
export type DatabasePlace = { dir: string } | { url: string; connections?: number }

export interface Database extends AsyncDisposable {
  kind: 'embedded' | 'postgres'
  db: Kysely<Tables>
  /**
   * Calls back when something was announced with `pg_notify`, by any server, with what was said; also, with an empty text,
   * when anything may have been while it could not hear. What it resolves with ends that.
   */
  listen(channel: string, call: (payload: string) => void): Promise<() => Promise<void>>
  /** To be called every few minutes: frees the room of rows that were written over, where nobody else does. */
  maintain(): Promise<void>
}

export type Sql = Kysely<Tables> | Transaction<Tables>

/** A 64-bit integer; ours stay far below 2^53. */
const INT8 = 20

/** Opens the database and brings its tables up to date. */
export async function openDatabase(place: DatabasePlace): Promise<Database> {
  const database = 'dir' in place ? await openEmbedded(place.dir) : await openPostgres(place)
  try {
    await migrate(database.db)
    return database
  } catch (error) {
    await database[Symbol.asyncDispose]()
    throw error
  }
}

/** Of the operating system and of PostgreSQL: there is no connection, or the server is starting or going down. */
const AWAY = /^(?:ECONN|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN|ENOENT|08|57P0|53300)/
/** The same: the disk or the quota has no space left. */
const FULL = /^(?:ENOSPC|EDQUOT|53100)$/
/** The driver's own have no code. */
const AWAY_WORDS = /connection terminated|timeout exceeded when trying to connect|connection error|not queryable/i

/** Whether an error means that the database cannot be reached now, and the same may work later. */
export function isAway(error: unknown): boolean {
  if (error instanceof RolloutError) return error.code === 'store.unavailable'
  if (!(error instanceof Error)) return false
  if (!('code' in error) || typeof error.code !== 'string') return AWAY_WORDS.test(error.message)
  return AWAY.test(error.code) || FULL.test(error.code)
}

/** Whether an error means that the database has no space left to write to. */
export function isFull(error: unknown): boolean {
  return error instanceof Error && 'code' in error && FULL.test(String(error.code))
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
      // Between transactions: within one that fails it would be undone.
      listen: (channel, call) => db.connection().execute(() => pglite.listen(channel, call)),
      // There is no background worker in it that would.
      maintain: () => db.connection().execute(async (one) => void (await sql`vacuum (analyze)`.execute(one))),
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

/** PGlite takes no lock: two processes would write over each other's rows without a word. */
async function lockDirectory(dir: string): Promise<LockFile> {
  const outcome = await acquireLockFile(join(dir, 'LOCK'), await identifyProcess())
  if ('lock' in outcome) return outcome.lock
  const who = outcome.heldBy === undefined ? 'somebody' : `process ${outcome.heldBy.pid} on ${outcome.heldBy.host}`
  throw new RolloutError(
    'store.unavailable',
    `${who} has the database in ${dir} open; stop it, choose another directory, or use PostgreSQL for several servers.`,
  )
}
