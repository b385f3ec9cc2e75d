import { type Kysely, sql } from 'kysely'
import { Migrator } from 'kysely/migration'
import { RolloutError } from '../../model/failure.ts'

/** In order, and for ever: one that has been released is never changed, only followed by another. */
const MIGRATIONS: Readonly<Record<string, readonly string[]>> = {
  '0001-tasks-and-sessions': [
    `create table tasks (
      id text primary key,
      seq bigserial not null unique,
      body text not null,
      digest text not null,
      status text not null,
      priority int not null,
      harness text not null,
      model text,
      callback_url text,
      need int not null,
      ended int not null default 0,
      valid int not null default 0,
      usable int not null default 0,
      failed int not null default 0,
      cancelled int not null default 0,
      refills int not null default 0,
      early_stop int,
      max_failures int not null,
      policy_version int,
      staleness_limit int,
      created_at float8 not null,
      updated_at float8 not null
    )`,
    `create index tasks_running on tasks (policy_version) where status = 'running'`,
    `create table lanes (id serial primary key, requires jsonb not null unique)`,
    `create table rounds (priority int primary key, round int not null)`,
    `insert into rounds select priority, 0 from generate_series(0, 100) as priority`,
    `create table policy (id int primary key, version int not null)`,
    `insert into policy values (1, 0)`,
    // Room in each page, so that a renewal is written beside the old row and touches no index.
    `create table sessions (
      id text primary key,
      seq bigserial not null,
      task_id text not null references tasks,
      sample int not null,
      lane_id int not null references lanes,
      priority int not null,
      round int not null,
      state text not null,
      status text not null,
      attempt int not null default 1,
      failures int not null default 0,
      beat int not null default 0,
      node_id text,
      leased_at float8,
      ended_at float8,
      reward float8,
      failure text,
      timing text,
      unique (task_id, sample)
    ) with (fillfactor = 70)`,
    `create index sessions_queued on sessions (lane_id, priority desc, round, seq) where state = 'queued'`,
    `create index sessions_leased on sessions (node_id) where state = 'leased'`,
    `create table attempts (
      session_id text not null references sessions,
      attempt int not null,
      node_id text,
      ending text not null,
      failure text,
      leased_at float8,
      ended_at float8 not null,
      primary key (session_id, attempt)
    )`,
    `create table results (
      session_id text not null references sessions,
      attempt int not null,
      task_id text not null,
      path text not null,
      digest text not null,
      bytes bigint not null,
      accepted_at float8 not null,
      primary key (session_id, attempt)
    )`,
    `create index results_of_task on results (task_id)`,
    `create table nodes (
      id text primary key,
      registration text not null,
      labels text not null,
      metrics text not null,
      draining boolean not null default false,
      joined_at float8 not null,
      seen_at float8 not null
    )`,
    `create table events (
      id bigserial not null,
      txid bigint not null default (pg_current_xact_id()::text::bigint),
      type text not null,
      data text not null,
      ts float8 not null,
      primary key (txid, id)
    )`,
    `create table callbacks (
      id bigserial primary key,
      task_id text not null references tasks,
      url text not null,
      state text not null default 'waiting',
      tries int not null default 0,
      next_at float8 not null,
      last_error text
    )`,
    `create index callbacks_waiting on callbacks (next_at) where state = 'waiting'`,
  ],
}

/** Brings the tables up to date. Servers may start at once: one does it under an advisory lock, the others wait. */
export async function migrate<T>(db: Kysely<T>): Promise<void> {
  const migrations = Object.entries(MIGRATIONS).map(
    ([name, statements]) =>
      [
        name,
        {
          async up(tx: Kysely<unknown>) {
            for (const statement of statements) await sql.raw(statement).execute(tx)
          },
        },
      ] as const,
  )
  const migrator = new Migrator({
    db,
    provider: { getMigrations: () => Promise.resolve(Object.fromEntries(migrations)) },
    migrationTableName: 'polar_migrations',
    migrationLockTableName: 'polar_migration_lock',
  })
  const { error } = await migrator.migrateToLatest()
  if (error === undefined) return
  if (error instanceof Error && error.message.includes('previously executed migration')) {
    throw new RolloutError('store.newer-schema', 'The database was made by a newer version of Polar; use that one.', {
      cause: error,
    })
  }
  throw new RolloutError('store.unavailable', 'The tables could not be brought up to date; see the cause.', {
    cause: error,
  })
}
