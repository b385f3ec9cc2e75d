import { createHash } from 'node:crypto'
import { type Selectable, sql } from 'kysely'
import { RolloutError } from '../../../model/failure.ts'
import type { IdSource } from '../../../model/ids.ts'
import type { Sql } from '../../database.ts'
import type { Tables } from '../../database/tables.ts'
import { type Archived, archiveFinished } from '../internal/archive-task.ts'
import { fitsQueueLimit, lockQueueLimit } from '../internal/queue-limit.ts'
import { WORK_CHANNEL } from '../internal/work-channel.ts'
import { type NewEvent, writeEvents } from '../internal/write-events.ts'
import type { EnqueueOutcome, Submission } from '../types.ts'

interface EnqueueDeps {
  now: number
  ids: IdSource
  owner: string
  samplesPerRound: number
  /** Idempotency key of the submit. */
  key?: string | undefined
  /** Archives a finished task with the same id. */
  isRerun: boolean
}

const DEFAULT_MAX_FAILURES = 4

interface Prepared {
  submission: Submission
  body: string
  digest: string
}

/**
 * Decides fairness between the tasks of an owner at insertion: samples of a task are spread over rounds, a few per round,
 * starting after the round that is being leased now. Leasing the lowest round first then serves every task in turn, by an
 * index and without reading what runs. A new task waits for one round at most, and cannot make the current round longer.
 * Requeued sessions are in round zero, which does not count as the current round.
 */
export async function enqueue(
  db: Sql,
  submissions: readonly Submission[],
  deps: EnqueueDeps,
): Promise<EnqueueOutcome[]> {
  for (const submission of submissions) assertStorable(submission, deps.owner)
  const prepared = submissions.map((submission) => {
    return { submission, body: JSON.stringify(submission.task), digest: digestOf(submission.task) }
  })
  const overQuota = new OverQuota()
  try {
    return await db.transaction().execute(async (tx) => {
      const limit = await lockQueueLimit(tx, deps.owner)
      const fresh = await withoutStale(tx, prepared)
      const ids = [...fresh].map(({ submission }) => submission.task.task_id)
      const archived = deps.isRerun ? await archiveFinished(tx, ids, deps.key) : new Map<string, Archived>()
      const created = await insertTasks(tx, fresh, archived, deps)
      const sessions = [...created].reduce((sum, { submission: { task } }) => sum + task.num_samples, 0)
      if (!(await fitsQueueLimit(tx, deps.owner, limit, sessions))) throw overQuota
      await insertSessions(tx, created, deps)
      await writeEvents(tx, [...created].map(toEvent), deps.now)
      if (created.size > 0) await sql`select pg_notify(${WORK_CHANNEL}, '')`.execute(tx)
      const known = await readKnown(tx, fresh)
      return prepared.map((entry) => {
        const taskId = entry.submission.task.task_id
        if (!fresh.has(entry)) return { taskId, kind: 'stale' }
        if (created.has(entry)) return { taskId, kind: 'created', archivedAs: archived.get(taskId)?.id }
        const task = known.get(taskId)
        if (task?.is_tombstone) return { taskId, kind: task.deleted_at === null ? 'cancelled' : 'deleted' }
        return { taskId, kind: task?.digest === entry.digest ? 'same' : 'conflict' }
      })
    })
  } catch (error) {
    if (error !== overQuota) throw error
    return submissions.map(({ task }) => ({ taskId: task.task_id, kind: 'over-quota' }))
  }
}

/** Thrown to roll back the transaction; caught in this file. */
class OverQuota extends Error {}

/** PostgreSQL's `text` cannot hold NUL or lone surrogates. All other free text is stored as JSON. */
function assertStorable({ task, requires = [], affinity = [] }: Submission, owner: string): void {
  const texts = [task.task_id, task.callback_url ?? '', task.agent.harness ?? '', task.agent.model_name ?? '', owner]
  for (const text of [...texts, task.agent.import_path ?? '', ...requires, ...affinity]) {
    if (text.isWellFormed() && !text.includes('\0')) continue
    throw new RolloutError(
      'request.malformed',
      `${JSON.stringify(text)} holds a NUL character or a lone surrogate; remove it.`,
    )
  }
}

/** Locks the policy version, so that it cannot advance before the inserts commit. */
async function withoutStale(db: Sql, prepared: readonly Prepared[]): Promise<Set<Prepared>> {
  if (prepared.every(({ submission }) => submission.stalenessLimit === undefined)) return new Set(prepared)
  const { rows } = await sql<{ version: number }>`select version from policy for share`.execute(db)
  const version = rows[0]?.version ?? 0
  return new Set(
    prepared.filter(({ submission: { policyVersion, stalenessLimit } }) => {
      return policyVersion === undefined || stalenessLimit === undefined || policyVersion + stalenessLimit >= version
    }),
  )
}

/** Inserts in order of id, so that two batches with the same tasks cannot deadlock. */
async function insertTasks(
  db: Sql,
  fresh: ReadonlySet<Prepared>,
  archived: ReadonlyMap<string, Archived>,
  { owner, now, key }: EnqueueDeps,
): Promise<Set<Prepared>> {
  const entries = [...fresh].sort((a, b) => (a.submission.task.task_id < b.submission.task.task_id ? -1 : 1))
  const rows = entries.map(({ submission: { task, ...options }, body, digest }) => ({
    id: task.task_id,
    body,
    digest,
    priority: task.dispatch_priority,
    harness: task.agent.harness ?? task.agent.import_path ?? '',
    model: task.agent.model_name ?? null,
    callback_url: task.callback_url ?? null,
    need: task.num_samples,
    early_stop: task.early_stop_min_usable_sessions ?? null,
    max_failures: options.maxFailures ?? DEFAULT_MAX_FAILURES,
    policy_version: options.policyVersion ?? null,
    staleness_limit: options.stalenessLimit ?? null,
    run: archived.get(task.task_id)?.nextRun ?? 1,
  }))
  const inserted = await sql<{ id: string }>`
    insert into tasks (id, body, digest, owner, status, priority, harness, model, callback_url, need, early_stop,
      max_failures, policy_version, staleness_limit, run, submit_key, created_at, updated_at)
    select t.id, t.body, t.digest, ${owner}, 'running', t.priority, t.harness, t.model, t.callback_url, t.need,
      t.early_stop, t.max_failures, t.policy_version, t.staleness_limit, t.run, ${key ?? null}::text,
      ${now}::float8, ${now}::float8
    from json_to_recordset(${JSON.stringify(rows)}::json) as t(id text, body text, digest text, priority int,
      harness text, model text, callback_url text, need int, early_stop int, max_failures int, policy_version int,
      staleness_limit int, run int)
    on conflict (id) do nothing
    returning id
  `.execute(db)
  const ids = new Set(inserted.rows.map(({ id }) => id))
  // Of several entries with the same id the first was inserted.
  return new Set(entries.filter(({ submission }) => ids.delete(submission.task.task_id)))
}

async function insertSessions(db: Sql, created: ReadonlySet<Prepared>, deps: EnqueueDeps): Promise<void> {
  if (created.size === 0) return
  let place = 0
  const rows = [...created].flatMap(({ submission: { task, requires = [], affinity = [] } }) =>
    Array.from({ length: task.num_samples }, (_, sample) => ({
      place: place++,
      id: deps.ids.next('ses'),
      task_id: task.task_id,
      sample,
      priority: task.dispatch_priority,
      round: Math.floor(sample / deps.samplesPerRound),
      requires: [...new Set(requires)].sort(),
      affinity: [...new Set(affinity)],
    })),
  )
  const lanes = [...new Set(rows.map(({ requires }) => JSON.stringify(requires)))].sort()
  for (const lane of lanes) {
    await sql`
      insert into lanes (owner, requires) values (${deps.owner}, ${lane}::jsonb) on conflict do nothing
    `.execute(db)
  }
  await sql`
    with s as materialized (
      select s.*, lanes.id as lane_id from json_to_recordset(${JSON.stringify(rows)}::json) as s(place int, id text,
        task_id text, sample int, priority int, round int, requires jsonb, affinity jsonb)
      join lanes on lanes.owner = ${deps.owner} and lanes.requires = s.requires
    ), begin as materialized (
      select p.lane_id, p.priority, coalesce(h.round, 0) + 1 as round
      from (select distinct lane_id, priority from s) p left join lateral (
        select round from sessions
        where state = 'queued' and sessions.lane_id = p.lane_id and sessions.priority = p.priority and round > 0
        order by round limit 1
      ) h on true
    )
    insert into sessions (id, task_id, sample, lane_id, priority, round, affinity, state, status)
    select s.id, s.task_id, s.sample, s.lane_id, s.priority, begin.round + s.round, s.affinity, 'queued', 'REGISTERED'
    from s join begin using (lane_id, priority) order by s.place
  `.execute(db)
}

type KnownTask = Pick<Selectable<Tables['tasks']>, 'id' | 'digest' | 'is_tombstone' | 'deleted_at'>

async function readKnown(db: Sql, fresh: ReadonlySet<Prepared>): Promise<Map<string, KnownTask>> {
  const ids = JSON.stringify([...fresh].map(({ submission }) => submission.task.task_id))
  const { rows } = await sql<KnownTask>`
    select id, digest, is_tombstone, deleted_at from tasks
    where id = any(array(select json_array_elements_text(${ids}::json)))
  `.execute(db)
  return new Map(rows.map((row) => [row.id, row]))
}

function toEvent({ submission: { task } }: Prepared): NewEvent {
  return { type: 'task.created', data: { task_id: task.task_id, status: 'running', num_samples: task.num_samples } }
}

/** Does not depend on the order of keys. */
function digestOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value, sortKeys)).digest('hex')
}

function sortKeys(_key: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
}
