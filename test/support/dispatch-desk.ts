import { sql } from 'kysely'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { FailureCode } from '../../src/model/failure.ts'
import { RolloutError } from '../../src/model/failure.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { TaskRequest } from '../../src/model/task.ts'
import type { Database } from '../../src/store/database.ts'
import {
  type Acceptance,
  createDispatch,
  type Dispatch,
  type DispatchDeps,
  type Lease,
  type LeasedOrder,
} from '../../src/store/dispatch.ts'

/** A dispatch whose time passes when told to, and short words for what tests do with it. */
export class DispatchDesk {
  readonly database: Database
  readonly dispatch: Dispatch
  readonly leaseMs = 9000
  /** What its clocks say: the one on the wall may jump. */
  wall = 1_000_000
  elapsed = 0

  constructor(database: Database, options: Partial<DispatchDeps> = {}) {
    this.database = database
    this.dispatch = createDispatch({
      database,
      clock: { now: () => this.wall },
      monotonic: () => this.elapsed,
      ids: randomIds(Date.now),
      leaseMs: this.leaseMs,
      ...options,
    })
  }

  /** Everything is as in a new database. */
  async clear(): Promise<void> {
    const { db } = this.database
    await sql`truncate tasks, lanes, sessions, attempts, results, nodes, events, callbacks restart identity`.execute(db)
    await sql`update rounds set round = 0`.execute(db)
    await sql`update policy set version = 0`.execute(db)
  }

  async submit(id: string, samples: number, more: Partial<TaskRequest> = {}): Promise<void> {
    await this.dispatch.enqueue([{ task: makeTask(id, samples, more) }])
  }

  async take(freeSlots = 1, nodeId = 'n1', labels: readonly string[] = []): Promise<Lease[]> {
    return (await this.dispatch.lease(nodeId, { labels, freeSlots })).map(toLease)
  }

  end(lease: Lease, code?: FailureCode, more: Partial<SessionOutcome> = {}): Promise<Acceptance> {
    const digest = `${lease.sessionId}-${lease.attempt}`
    return this.dispatch.accept(makeOutcome(lease, code, more), { path: `results/${digest}`, digest, bytes: 10 })
  }

  /** Time passes, with looks at the leases in between; how many were lost. */
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

/** Without a code it ended well and can be trained on. */
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

export function toLease({ order }: LeasedOrder): Lease {
  return { sessionId: order.sessionId, attempt: order.attempt }
}
