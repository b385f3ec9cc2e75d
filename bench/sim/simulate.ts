import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sql } from 'kysely'
import { type Database, openDatabase } from '../../src/store/database.ts'
import { copyDatabase } from '../../test/support/database-template.ts'
import { runIdeal } from './baselines/ideal.ts'
import { runNvidia } from './baselines/nvidia.ts'
import { findProblems } from './polar/audit.ts'
import type { OperationLoad } from './polar/database-load.ts'
import { type PolarRun, runPolar } from './polar/run.ts'
import type { Results } from './report.ts'
import type { SimOptions } from './flags.ts'
import { summarise, type Summary } from './summary.ts'

export interface PolarSummary {
  summary: Summary
  database: {
    kind: string
    operations: Record<string, OperationLoad>
    statements: number
    ms: number
    mb: number
    rows: Record<'sessions' | 'attempts' | 'events', number>
  }
  server: { busyShare: number; meanWaitMs: number; longestWaitMs: number }
  real: { seconds: number; heapMb: number; residentMb: number }
  /** Differences between the tables and the expected state; empty when they agree. */
  problems: string[]
}

export async function simulate(
  { scenario, databaseUrl, baselines }: SimOptions,
  onProgress?: (text: string) => void,
): Promise<Results> {
  await using scratch = databaseUrl === undefined ? await mkdtempDisposable(join(tmpdir(), 'polar-sim-')) : undefined
  if (scratch !== undefined) await copyDatabase(scratch.path)
  await using database = await openDatabase(scratch === undefined ? { url: databaseUrl! } : { dir: scratch.path })
  await empty(database)
  const polar = await toPolarSummary(await runPolar(scenario, database, onProgress), database)
  if (!baselines) return { polar }
  const nvidia = await runNvidia(scenario)
  const ideal = await runIdeal(scenario)
  return {
    polar,
    nvidia: summarise(nvidia.ledger, nvidia.workload),
    ideal: summarise(ideal.ledger, ideal.workload),
  }
}

/** Removes the rows of an earlier run. */
async function empty({ db }: Database): Promise<void> {
  await sql`truncate tasks, lanes, sessions, attempts, results, nodes, events, callbacks restart identity cascade`.execute(
    db,
  )
  await sql`update policy set version = 0`.execute(db)
}

async function toPolarSummary(run: PolarRun, database: Database): Promise<PolarSummary> {
  const { ledger, workload, load, server, clock, realMs } = run
  const { heapUsed, rss } = process.memoryUsage()
  const operations = Object.fromEntries(load.byOperation)
  const total = (of: (operation: OperationLoad) => number): number =>
    Object.values(operations).reduce((sum, operation) => sum + of(operation), 0)
  const { waitedMs, busyMs } = server.thread
  return {
    summary: summarise(ledger, workload),
    database: {
      kind: database.kind === 'embedded' ? 'PGlite' : 'PostgreSQL',
      operations,
      statements: total(({ statements }) => statements),
      ms: total(({ ms }) => ms),
      ...(await measureTables(database)),
    },
    server: {
      busyShare: busyMs / clock.elapsed,
      meanWaitMs: waitedMs.all / waitedMs.jobs,
      longestWaitMs: waitedMs.longest,
    },
    real: { seconds: realMs / 1000, heapMb: heapUsed / 2 ** 20, residentMb: rss / 2 ** 20 },
    problems: await findProblems(run, database),
  }
}

async function measureTables({ db }: Database) {
  const { rows } = await sql<{ bytes: number; sessions: number; attempts: number; events: number }>`
    select pg_database_size(current_database())::float8 as bytes, (select count(*) from sessions) as sessions,
      (select count(*) from attempts) as attempts, (select count(*) from events) as events
  `.execute(db)
  const { bytes = 0, sessions = 0, attempts = 0, events = 0 } = rows[0] ?? {}
  return { mb: bytes / 2 ** 20, rows: { sessions, attempts, events } }
}
