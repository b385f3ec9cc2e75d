import { sql } from 'kysely'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { FailureCode } from '../../src/model/failure.ts'
import { RolloutError } from '../../src/model/failure.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { TaskRequest } from '../../src/model/task.ts'
import type { Database } from '../../src/store/database.ts'
import { putNode } from '../../src/store/dispatch/commands/nodes.ts'
import {
  type Acceptance,
  type ArtifactReference,
  Dispatch,
  type DispatchDeps,
  type Lease,
  type LeasedOrder,
  type LeaseRequest,
  type Renewal,
  type RenewalOutcome,
} from '../../src/store/dispatch/port.ts'

/** Every table comes before the tables that it refers to. `truncate` takes thirty times the CPU time of `delete` on empty tables. */
const TABLES = [
  'callbacks',
  'events',
  'artifacts',
  'results',
  'attempts',
  'sessions',
  'nodes',
  'quotas',
  'lanes',
  'tasks',
] as const
const SEQUENCES = ['tasks_seq_seq', 'lanes_id_seq', 'sessions_seq_seq', 'events_id_seq', 'callbacks_id_seq']

/** A dispatch with a manual clock, and short methods for tests. */
export class DispatchDriver {
  readonly database: Database
  readonly dispatch: Dispatch
  readonly leaseMs = 9000
  /** Milliseconds of the wall clock, which may jump, and of the monotonic clock. */
  wall = 1_000_000
  elapsed = 0
  readonly #known = new Set<string>()

  constructor(database: Database, options: Partial<DispatchDeps> = {}) {
    this.database = database
    this.dispatch = new Dispatch({
      database,
      clock: { now: () => this.wall },
      monotonic: () => this.elapsed,
      ids: randomIds(Date.now),
      leaseMs: this.leaseMs,
      // Failed sessions are queued again immediately; one test covers the delay.
      restMs: 0,
      ...options,
    })
  }

  /** Restores the state of a new database. */
  async clear(): Promise<void> {
    const { db } = this.database
    let rows = 0n
    for (const table of TABLES) rows += (await sql`delete from ${sql.table(table)}`.execute(db)).numAffectedRows ?? 0n
    // PostgreSQL keeps the space of deleted rows.
    if (rows > 1000n) await sql`truncate ${sql.join(TABLES.map((table) => sql.table(table)))}`.execute(db)
    for (const sequence of SEQUENCES) await sql`select setval(${sequence}::regclass, 1, false)`.execute(db)
    await sql`update policy set version = 0, is_set = false, is_paused = false, mode = 'drain', change = 0`.execute(db)
    this.#known.clear()
    for (const nodeId of ['n1', 'n2', 'n3']) await this.know(nodeId)
  }

  /** Joins the node, because only joined nodes can lease sessions. */
  async know(nodeId: string, labels: readonly string[] = []): Promise<void> {
    if (this.#known.has(nodeId)) return
    await putNode(this.database.db, { registration: makeRegistration(nodeId), labels }, this.wall)
    this.#known.add(nodeId)
  }

  async submit(id: string, samples: number, more: Partial<TaskRequest> = {}, owner?: string): Promise<void> {
    await this.dispatch.enqueue([{ task: makeTask(id, samples, more) }], { owner })
  }

  async take(freeSlots = 1, nodeId = 'n1', labels: readonly string[] = []): Promise<Lease[]> {
    return (await this.orders(freeSlots, nodeId, { labels })).map(toLease)
  }

  async orders(freeSlots: number, nodeId = 'n1', request: Partial<LeaseRequest> = {}): Promise<LeasedOrder[]> {
    await this.know(nodeId)
    return (await this.dispatch.lease(nodeId, { labels: [], freeSlots, ...request })).orders
  }

  async renew(nodeId: string, renewals: readonly Renewal[]): Promise<RenewalOutcome[]> {
    return (await this.dispatch.renew(nodeId, renewals)).outcomes
  }

  end(
    lease: Lease,
    code?: FailureCode,
    more: Partial<SessionOutcome> = {},
    artifacts?: readonly ArtifactReference[],
  ): Promise<Acceptance> {
    const digest = `${lease.sessionId}-${lease.attempt}`
    const result = { path: `results/${digest}`, digest, bytes: 10 }
    return this.dispatch.accept(makeOutcome(lease, code, more), result, artifacts)
  }

  /** Advances the time and expires leases every second. Returns the number of expired leases. */
  async pass(ms: number): Promise<number> {
    const steps = Math.ceil(ms / 1000)
    let lost = 0
    for (let step = 0; step < steps; step += 1) {
      this.elapsed += ms / steps
      lost += await this.dispatch.expire()
    }
    return lost
  }
}

export function makeTask(id: string, samples: number, more: Partial<TaskRequest> = {}): TaskRequest {
  const base = { task_id: id, instruction: 'do it', num_samples: samples, agent: { harness: 'pi' } }
  return TaskRequest.parse({ ...base, ...more })
}

/** Without a failure code, the session completed and can be trained. */
export function makeOutcome(lease: Lease, code?: FailureCode, more: Partial<SessionOutcome> = {}): SessionOutcome {
  return {
    schemaVersion: 1,
    ...lease,
    taskId: '',
    nodeId: 'n1',
    status: code === undefined ? 'COMPLETED' : 'ERROR',
    ...(code !== undefined && { failure: new RolloutError(code, 'as asked for').failure }),
    counts: {
      builder: 'per_request',
      turns: 1,
      calls: 1,
      rows: 1,
      trainedCalls: 1,
      tokens: { sampled: 5, trained: code === undefined ? 5 : 0, excluded: 0 },
    },
    timing: {},
    artifacts: [],
    endedAt: 0,
    ...more,
  }
}

export function makeRegistration(nodeId: string) {
  return {
    node_id: nodeId,
    gateway_url: 'http://127.0.0.1:1',
    heartbeat_interval_seconds: 30,
    max_init_workers: 1,
    max_run_workers: 1,
    max_postrun_workers: 1,
  }
}

export function toLease({ order }: LeasedOrder): Lease {
  return { sessionId: order.sessionId, attempt: order.attempt }
}
