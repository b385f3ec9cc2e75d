import { writeFile } from 'node:fs/promises'
import { zstdCompressSync } from 'node:zlib'
import { NodeStageMetrics } from '../../src/model/node.ts'
import { RolloutError } from '../../src/model/failure.ts'
import type { SessionOrder } from '../../src/model/session-order.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import type { SessionStatus } from '../../src/model/session.ts'
import type { RunningSession } from '../../src/node/node.ts'
import { pastFolder, SessionFolder, sessionsFolder } from '../../src/node/session/session-folder.ts'
import { renderResult } from '../../src/node/session/session-result.ts'
import type { PolicyGateway } from '../../src/node/server-link/policy-link.ts'
import type { WorkerNode } from '../../src/node/server-link/worker-node.ts'
import type { FakeClock } from './fake-clock.ts'

export interface FakeLife {
  /** Duration of its wait, and of its run. */
  waitMs: number
  runMs: number
  ending: 'ok' | 'spoilt' | 'failed'
}

/** A gateway that records what was set. */
export class FakeGateway implements PolicyGateway {
  readonly changes: string[] = []
  inFlight = 0
  /** Calls that the gateway rejects, as while its process restarts. */
  failures = 0

  async pause(): Promise<boolean> {
    this.#change('pause')
    return this.inFlight === 0
  }

  async resume(): Promise<void> {
    this.#change('resume')
  }

  async setWeightVersion(version: string): Promise<void> {
    this.#change(version)
  }

  async status(): ReturnType<PolicyGateway['status']> {
    return { paused: false, inFlight: this.inFlight, sessions: 0, weightVersion: undefined }
  }

  #change(what: string): void {
    if (this.failures-- > 0) throw new RolloutError('session.gateway-lost', 'The gateway process is restarting.')
    this.changes.push(what)
  }
}

/** A node whose sessions take the configured time, and write the same files as those of a real node. */
export class FakeNode implements WorkerNode {
  readonly dir: string
  readonly widths = { init: 1, ready: 1, run: 2, postrun: 1, backlog: 1 }
  readonly metrics = NodeStageMetrics.parse({})
  readonly cancelled: string[] = []
  readonly began: string[] = []
  most = 0
  isDead = false
  readonly #clock: FakeClock
  readonly #lifeOf: (order: SessionOrder) => FakeLife
  readonly #running = new Map<string, RunningSession>()

  constructor(dir: string, clock: FakeClock, lifeOf: (order: SessionOrder) => FakeLife) {
    this.dir = dir
    this.#clock = clock
    this.#lifeOf = lifeOf
  }

  get sessions(): readonly RunningSession[] {
    return [...this.#running.values()]
  }

  progressOf(): { calls: number; tokens: number } {
    return { calls: 1, tokens: 2 }
  }

  submit(order: SessionOrder, onStatus?: () => void): RunningSession {
    const { sessionId, attempt } = order
    const earlier = this.#running.get(sessionId)
    if (earlier !== undefined && earlier.attempt >= attempt)
      throw new RolloutError('config.invalid', 'It runs already.')
    earlier?.cancel('A later one takes its place.')
    const cancel = new AbortController()
    let status: SessionStatus = 'REGISTERED'
    const to = (next: SessionStatus): void => {
      status = next
      if (!this.isDead) onStatus?.()
    }
    const outcome = this.#run(order, earlier, to, cancel.signal).finally(() => {
      if (this.#running.get(sessionId) === session) this.#running.delete(sessionId)
    })
    outcome.catch(() => {})
    const session: RunningSession = {
      sessionId,
      attempt,
      outcome,
      get status() {
        return status
      },
      cancel: (reason) => {
        this.cancelled.push(`${sessionId}/${attempt}`)
        cancel.abort(new Error(reason))
      },
    }
    this.#running.set(sessionId, session)
    const busy = this.sessions.filter((one) => one.status === 'REGISTERED' || one.status === 'RUNNING')
    this.most = Math.max(this.most, busy.length)
    return session
  }

  async #run(
    order: SessionOrder,
    earlier: RunningSession | undefined,
    to: (status: SessionStatus) => void,
    cancel: AbortSignal,
  ): Promise<SessionOutcome> {
    const { waitMs, runMs, ending } = this.#lifeOf(order)
    await earlier?.outcome.catch(() => {})
    const folder = SessionFolder.of(sessionsFolder(this.dir), order.sessionId)
    await folder.archive(pastFolder(this.dir))
    await folder.writeOrder(order)
    const isOver = await this.#stay(waitMs, cancel)
    if (!isOver) {
      this.began.push(`${order.sessionId}/${order.attempt}`)
      to('RUNNING')
      await this.#stay(runMs, cancel)
      to('POST_RUN')
    }
    const status = cancel.aborted ? 'CANCELLED' : ending === 'ok' ? 'COMPLETED' : 'ERROR'
    const outcome: SessionOutcome = {
      schemaVersion: 1,
      sessionId: order.sessionId,
      taskId: order.task.task_id,
      attempt: order.attempt,
      nodeId: 'node-1',
      status,
      ...(status === 'ERROR'
        ? { failure: new RolloutError(ending === 'spoilt' ? 'runtime.gone' : 'harness.exit-nonzero', 'So.').failure }
        : {}),
      timing: {},
      artifacts: [],
      endedAt: this.#clock.now(),
    }
    if (this.isDead) return new Promise(() => {})
    await writeFile(folder.result, zstdCompressSync([...renderResult({ order, outcome })].join('')))
    await folder.writeOutcome(outcome)
    to(status)
    return outcome
  }

  /** Returns whether the session was cancelled. Never resolves on a dead node. */
  async #stay(ms: number, cancel: AbortSignal): Promise<boolean> {
    await this.#clock.sleep(ms, cancel).catch(() => {})
    if (this.isDead) await new Promise(() => {})
    return cancel.aborted
  }

  async archive(sessionId: string, attempt: number): Promise<string | undefined> {
    if (this.#running.has(sessionId)) return undefined
    return SessionFolder.of(sessionsFolder(this.dir), sessionId).archive(pastFolder(this.dir), attempt)
  }

  /** Archives unfinished sessions, like a node that starts with this folder. */
  static async recover(dir: string): Promise<void> {
    for (const folder of await SessionFolder.unfinished(sessionsFolder(dir))) await folder.archive(pastFolder(dir))
  }
}

/** Resolves when no disk operation is pending either. */
export async function settleWithDisk(): Promise<void> {
  for (let quiet = 0; quiet < 3;) {
    await new Promise((resolve) => setImmediate(resolve))
    const isBusy = process.getActiveResourcesInfo().some((name) => /^(?:FSReq|CloseReq|FileHandle)/.test(name))
    quiet = isBusy ? 0 : quiet + 1
  }
}
