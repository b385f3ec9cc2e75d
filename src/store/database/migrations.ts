import { type Kysely, sql } from 'kysely'
import { Migrator } from 'kysely/migration'
import { RolloutError } from '../../model/failure.ts'

/** In order. A released migration is never changed; changes need a new one. */
const MIGRATIONS: Readonly<Record<string, readonly string[]>> = {
  '0001-tasks-and-sessions': [
    // Free space in each page allows updates of counts and renewals in the same page, without index writes (HOT).
    `create table tasks (
      id text primary key,
      seq bigserial not null,
      body text not null,
      digest text not null,
      owner text not null,
      status text not null,
      is_tombstone boolean not null default false,
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
      endings int not null default 0,
      early_stop int,
      max_failures int not null,
      policy_version int,
      staleness_limit int,
      created_at float8 not null,
      updated_at float8 not null
    ) with (fillfactor = 70)`,
    `create index tasks_running on tasks (policy_version) where status = 'running'`,
    `create index tasks_tombstones on tasks (created_at) where is_tombstone`,
    `create table lanes (
      id serial primary key,
      owner text not null,
      requires jsonb not null,
      unique (owner, requires)
    )`,
    `create table quotas (owner text primary key, max_queued int, max_running int)`,
    `create table policy (id int primary key, version int not null)`,
    `insert into policy values (1, 0)`,
    `create table sessions (
      id text primary key,
      seq bigserial not null,
      task_id text not null references tasks,
      sample int not null,
      lane_id int not null references lanes,
      priority int not null,
      round int not null,
      affinity jsonb not null,
      state text not null,
      status text not null,
      attempt int not null default 1,
      failures int not null default 0,
      beat int not null default 0,
      is_known_there boolean not null default false,
      node_id text,
      leased_at float8,
      ended_at float8,
      calls int,
      tokens bigint,
      verdict text,
      is_usable boolean not null default false,
      reward float8,
      traces int,
      completions int,
      failure text,
      failure_code text,
      timing text,
      unique (task_id, sample)
    ) with (fillfactor = 70)`,
    `create index sessions_queued on sessions (lane_id, priority desc, round, seq) where state = 'queued'`,
    `create index sessions_leased on sessions (node_id) where state = 'leased'`,
    `create index sessions_resting on sessions (id) where state = 'resting'`,
    `create table attempts (
      session_id text not null references sessions,
      attempt int not null,
      task_id text not null,
      place int,
      node_id text,
      ending text not null,
      status text not null,
      failure text,
      reward float8,
      timing text,
      leased_at float8,
      ended_at float8 not null,
      primary key (session_id, attempt)
    )`,
    `create unique index attempts_places on attempts (task_id, place) where place is not null`,
    `create table results (
      session_id text not null references sessions,
      attempt int not null,
      path text not null,
      digest text not null,
      bytes bigint not null,
      primary key (session_id, attempt)
    )`,
    `create table artifacts (
      session_id text not null references sessions,
      attempt int not null,
      path text not null,
      stored_path text not null,
      bytes bigint not null,
      digest text not null,
      is_cut boolean not null,
      primary key (session_id, attempt, path)
    )`,
    `create table nodes (
      id text primary key,
      registration text not null,
      labels text not null,
      boot_id text,
      metrics text not null,
      draining boolean not null default false,
      joined_at float8 not null,
      seen_at float8 not null
    ) with (fillfactor = 50)`,
    `create table events (
      id bigserial not null,
      txid bigint not null default (pg_current_xact_id()::text::bigint),
      type text not null,
      task_id text not null,
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
    `create index callbacks_of_task on callbacks (task_id)`,
  ],
  '0002-deleted-tasks': [
    `alter table tasks add column ended_at float8, add column bytes bigint not null default 0, add column deleted_at float8`,
    `update tasks set ended_at = updated_at, bytes = coalesce((
      select sum((select coalesce(sum(bytes), 0) from results where session_id = sessions.id)
        + (select coalesce(sum(bytes), 0) from artifacts where session_id = sessions.id))
      from sessions where task_id = tasks.id
    ), 0) where status <> 'running' and not is_tombstone`,
    // Only columns that change with the status: an index on a column that changes often makes every update slower.
    `create index tasks_ended on tasks (ended_at) include (bytes) where ended_at is not null`,
    `create index tasks_to_clear on tasks (id) where is_tombstone and need > 0`,
  ],
  '0003-runs-of-a-task': [`alter table tasks add column run int not null default 1, add column submit_key text`],
  '0004-policy-state': [
    `alter table policy add column is_set boolean not null default false,
      add column is_paused boolean not null default false, add column mode text not null default 'drain',
      add column change int not null default 0`,
    `update policy set is_set = version > 0`,
    `alter table nodes add column policy_change int, add column policy_version int,
      add column in_flight int not null default 0`,
  ],
  '0005-oldest-version': [`alter table sessions add column oldest_version int`],
}

/** Runs missing migrations. Servers may start at the same time: one migrates under an advisory lock, the others wait. */
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
  throw new RolloutError('store.unavailable', 'The database migrations failed; see the cause.', {
    cause: error,
  })
}
