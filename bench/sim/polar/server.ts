import { sql } from 'kysely'
import type { SessionOutcome } from '../../../src/model/session-outcome.ts'
import type { SessionStatus } from '../../../src/model/session.ts'
import { TaskRequest } from '../../../src/model/task.ts'
import { type QueuedLeaseRequest, LeaseQueue } from '../../../src/server/notify/lease-queue.ts'
import type { Database } from '../../../src/store/database.ts'
import { Dispatch, type Lease, type LeaseResponse, type LeaseRequest } from '../../../src/store/dispatch/port.ts'
import { WORK_CHANNEL } from '../../../src/store/dispatch/internal/work-channel.ts'
import type { VirtualClock } from '../clock.ts'
import type { FleetNode } from '../fleet.ts'
import type { Scenario } from '../scenario.ts'
import type { SimTask } from '../workload.ts'
import type { ExpectedState } from './expected-state.ts'
import type { DatabaseLoad } from './database-load.ts'
import type { ServerApi } from './node.ts'
import { ServerThread } from './thread.ts'

export interface SimServerDeps {
  scenario: Scenario
  clock: VirtualClock
  database: Database
  load: DatabaseLoad
  expected: ExpectedState
}

const POLL_MS = 30_000
const RING_EVERY_MS = 5000
const MAINTAIN_EVERY_MS = 180_000
const RETRY_MS = 2000

/**
 * The server of the simulation: the real dispatch and the real lease queue, behind a thread and a network that take virtual
 * time. HTTP, files and the trainers' callbacks are omitted.
 */
export class SimServer implements ServerApi, AsyncDisposable {
  readonly #deps: SimServerDeps
  readonly #database: Database
  readonly thread: ServerThread
  #stopListening: (() => Promise<void>) | undefined
  #dispatch: Dispatch | undefined
  #leaseQueue: LeaseQueue | undefined
  /** State of one server process. */
  #serverProcess = new AbortController()

  constructor(deps: SimServerDeps) {
    this.#deps = deps
    this.#database = deps.load.watch(deps.database)
    this.thread = new ServerThread(deps.clock, deps.scenario, (operation, work) => deps.load.measure(operation, work))
  }

  async start(): Promise<void> {
    const { clock, scenario } = this.#deps
    await this.#boot()
    this.#every(scenario.expireEveryMs, () => this.#expire())
    this.#every(RING_EVERY_MS, () => Promise.resolve(this.#leaseQueue?.notify()))
    this.#every(MAINTAIN_EVERY_MS, async () => {
      await this.thread.do('maintain', 0, () => this.#database.maintain())
    })
    const { outage } = scenario
    if (outage === undefined) return
    clock.after(outage.atMs, () => void this.#goDown().catch(clock.fail))
    clock.after(outage.atMs + outage.forMs, () => void clock.outside(this.#boot()).catch(clock.fail))
  }

  async #boot(): Promise<void> {
    const { clock, scenario } = this.#deps
    let ids = this.#deps.expected.sessions.size
    this.#serverProcess = new AbortController()
    this.#dispatch = new Dispatch({
      database: this.#database,
      clock,
      monotonic: () => clock.elapsed,
      ids: { next: (prefix) => `${prefix}_${String(ids++).padStart(8, '0')}` },
      leaseMs: scenario.leaseMs,
    })
    const lease = (nodeId: string, room: LeaseRequest) => this.#leaseNow(nodeId, room)
    this.#leaseQueue = new LeaseQueue({
      clock,
      lease,
      monotonic: () => clock.elapsed,
      maxSilenceMs: scenario.leaseMs / 2,
    })
    this.#stopListening = await this.#database.listen(WORK_CHANNEL, () => this.#leaseQueue?.notify())
    this.thread.isUp = true
  }

  async #goDown(): Promise<void> {
    this.#serverProcess.abort()
    this.thread.goDown()
    await this.#deps.clock.outside(this[Symbol.asyncDispose]())
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stopListening?.()
    this.#stopListening = undefined
  }

  async submit(tasks: readonly SimTask[]): Promise<void> {
    const { clock, expected } = this.#deps
    const sessions = tasks.reduce((sum, { samples }) => sum + samples, 0)
    const submissions = tasks.map(toSubmission)
    const owner = tasks[0]?.trainer.name ?? ''
    for (;;) {
      await clock.sleep(this.thread.travel())
      const answer = await this.thread.do('enqueue', sessions, async () => {
        const outcomes = await this.#dispatch!.enqueue(submissions, { owner })
        return { outcomes, rows: await this.#readSessions(tasks) }
      })
      if (answer === undefined) {
        await clock.sleep(RETRY_MS)
        continue
      }
      const { outcomes, rows } = answer.value
      for (const [i, task] of tasks.entries()) {
        const kind = outcomes[i]?.kind
        if (kind !== 'created' && kind !== 'same') throw new Error(`${task.id} was ${kind}`)
        expected.submitted(task, rows.get(task.id) ?? [])
      }
      return
    }
  }

  async advancePolicy(version: number): Promise<void> {
    for (;;) {
      const answer = await this.thread.do('policy', 0, async () => {
        await this.#dispatch!.changePolicy({ version })
        await this.#noticeEnded()
      })
      if (answer !== undefined) return
      await this.#deps.clock.sleep(RETRY_MS)
    }
  }

  join(node: FleetNode, bootId: string): Promise<true | undefined> {
    const { widths } = this.#deps.scenario
    const registration = {
      node_id: node.id,
      gateway_url: 'http://node',
      max_init_workers: widths.init,
      max_run_workers: widths.run,
      max_postrun_workers: widths.postrun,
      heartbeat_interval_seconds: 30,
    }
    return this.#there('join', 0, async () => {
      const joining = { registration, labels: node.labels, bootId, holding: [] }
      let answer = await this.#dispatch!.join(joining)
      if (answer.kind === 'taken') answer = await this.#dispatch!.join({ ...joining, replaces: answer.bootId })
      if (answer.kind === 'joined' && answer.lost > 0) await this.#noticeEnded()
      return true as const
    })
  }

  async lease(
    node: FleetNode,
    room: QueuedLeaseRequest,
    gone: AbortSignal,
  ): Promise<LeaseResponse['orders'] | undefined> {
    const { clock } = this.#deps
    await clock.sleep(this.thread.travel())
    if (!this.thread.isUp) return undefined
    const running = this.#serverProcess.signal
    try {
      const { orders } = await this.#leaseQueue!.lease(node.id, room, POLL_MS, AbortSignal.any([running, gone]))
      // The answer of a server that went down does not arrive; the lease of its sessions expires.
      if (running.aborted) return undefined
      await clock.sleep(this.thread.travel())
      return orders
    } catch (error) {
      if (error === AWAY) return undefined
      throw error
    }
  }

  async #leaseNow(nodeId: string, room: LeaseRequest): Promise<LeaseResponse> {
    const answer = await this.thread.do('lease', room.freeSlots, async () => {
      const leased = await this.#dispatch!.lease(nodeId, room)
      this.#deps.expected.leased(nodeId, room, leased)
      return leased
    })
    if (answer === undefined) throw AWAY
    return answer.value
  }

  async renew(
    node: FleetNode,
    bootId: string,
    held: readonly (Lease & { status: SessionStatus })[],
  ): Promise<Lease[] | undefined> {
    const answer = await this.#there('renew', held.length, () => {
      this.#leaseQueue?.markAlive(node.id)
      return this.#dispatch!.renew(node.id, held, { bootId })
    })
    return answer?.outcomes.filter(({ kind }) => kind === 'held')
  }

  async complete(outcome: SessionOutcome, more: { runMs: number; isFaithful: boolean }): Promise<true | undefined> {
    const { sessionId, attempt, status } = outcome
    const digest = `${sessionId}/${attempt}`
    return this.#there('accept', 1, async () => {
      const accepted = await this.#dispatch!.accept(outcome, { path: digest, digest, bytes: 1 })
      this.#deps.expected.accepted({ sessionId, attempt, status, runMs: more.runMs }, accepted, more.isFaithful)
      return true as const
    })
  }

  /** A request and its answer. */
  async #there<T>(
    operation: 'join' | 'renew' | 'accept',
    rows: number,
    work: () => Promise<T>,
  ): Promise<T | undefined> {
    await this.#deps.clock.sleep(this.thread.travel())
    const answer = await this.thread.do(operation, rows, work)
    await this.#deps.clock.sleep(this.thread.travel())
    return answer?.value
  }

  async #expire(): Promise<void> {
    const { expected, scenario } = this.#deps
    await this.thread.do('expire', Math.min(expected.sessions.size, scenario.nodes * scenario.widths.run), async () => {
      const lost = await this.#dispatch!.expire()
      if (lost > 0) await this.#noticeEnded()
    })
  }

  /** Tasks that ended without a result, because a session had failed too often or the policy version had advanced. */
  async #noticeEnded(): Promise<void> {
    const open = [...this.#deps.expected.tasks.values()].flatMap(({ task, isOver }) => (isOver ? [] : [task.id]))
    const { rows } = await sql<{ id: string }>`
      select id from tasks where status <> 'running' and id = any(array(select json_array_elements_text(${JSON.stringify(open)}::json)))
      order by id
    `.execute(this.#deps.database.db)
    for (const { id } of rows) this.#deps.expected.taskEnded(id)
  }

  async #readSessions(tasks: readonly SimTask[]): Promise<Map<string, { id: string; sample: number }[]>> {
    const ids = JSON.stringify(tasks.map(({ id }) => id))
    const { rows } = await sql<{ id: string; task_id: string; sample: number }>`
      select id, task_id, sample from sessions where task_id = any(array(select json_array_elements_text(${ids}::json)))
      order by task_id, sample
    `.execute(this.#deps.database.db)
    return Map.groupBy(rows, (row) => row.task_id)
  }

  #every(ms: number, work: () => Promise<void>): void {
    const { clock } = this.#deps
    clock.after(ms, () => {
      work()
        .catch(clock.fail)
        .finally(() => this.#every(ms, work))
    })
  }
}

const AWAY = new Error('the server is down')

function toSubmission({ id, samples, trainer, policyVersion }: SimTask) {
  const { priority, earlyStop, stalenessLimit, requires } = trainer
  const task = TaskRequest.parse({
    task_id: id,
    instruction: 'Make the tests pass.',
    num_samples: samples,
    agent: { harness: 'pi' },
    dispatch_priority: priority,
    ...(earlyStop !== undefined && { early_stop_min_usable_sessions: earlyStop }),
  })
  return {
    task,
    requires,
    ...(policyVersion !== undefined && { policyVersion }),
    ...(stalenessLimit !== undefined && { stalenessLimit }),
  }
}
