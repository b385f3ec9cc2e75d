import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Logger } from 'pino'
import { runInFaultScope } from '../lib/async/fault-scope.ts'
import { acquireLockFile, identifyProcess, type LockFile } from '../lib/fs/lock-file.ts'
import { Slots } from '../lib/async/slots.ts'
import { RolloutError, toFailure } from '../model/failure.ts'
import type { NodeStageMetrics } from '../model/node.ts'
import type { SessionOrder } from '../model/session-order.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import type { SessionStatus } from '../model/session.ts'
import type { TaskRequest } from '../model/task.ts'
import { Artifacts, type ArtifactPolicy } from './session/artifacts.ts'
import { toCounts } from './build/build-counts.ts'
import { SandboxLeases } from './sandbox/keep-alive.ts'
import { recoverSession, type Recovered } from './session/recover-session.ts'
import { runSession, type SessionEnd, type SessionLimits } from './session/run-session.ts'
import { RunTimes } from './session/run-times.ts'
import type { Runtime } from './sandbox/runtimes/runtime.ts'
import { pastFolder, SessionFolder, sessionsFolder } from './session/session-folder.ts'
import { writeResult } from './session/session-result.ts'
import type { Transition } from './session/session-states.ts'
import { RealWork, type SessionBuild, type WorkDeps } from './session/sandboxed-session.ts'
import { Stages, type StageWidths } from './session/stages.ts'

export interface NodeOptions extends Omit<WorkDeps, 'leases' | 'runTimes' | 'startTimes' | 'standby' | 'scratch'> {
  /** Everything it keeps: sessions below `sessions`, what is being graded below `grading`. */
  dir: string
  widths: StageWidths
  budgets: NodeBudgets
  artifacts: ArtifactPolicy
  /** Kinds of sandbox that an earlier process with the same folder may have left some of. */
  usedRuntimes(): Promise<Runtime[]>
  /**
   * What becomes of sessions that an earlier process left. `again` (default): those without captured calls are made again.
   * `report`: somebody else decides that; results are written as files, for a worker to deliver.
   */
  recovery?: 'again' | 'report'
  /** How far a session has come that is under way; absent: nobody counts. */
  progressOf?: (sessionId: string) => SessionProgress | undefined
  /** A sandbox of this order has been made ready: what it took is warm now. */
  onPrepared?: (order: SessionOrder) => void
  logger: Logger
  onEvent?: (event: SessionEvent) => void
}

/** For tasks that do not say. Seconds. */
export interface NodeBudgets {
  init: number
  evaluate: number
}

/** What happened to a session, as it happens. */
export interface SessionEvent {
  type: 'session.state_changed'
  session_id: string
  task_id: string
  attempt: number
  status: SessionStatus
  previous: SessionStatus
  /** Unix milliseconds. */
  at: number
}

/** Calls of the model that have ended, and the tokens it sampled in them. */
export interface SessionProgress {
  calls: number
  tokens: number
}

export interface RunningSession {
  readonly sessionId: string
  readonly attempt: number
  readonly status: SessionStatus
  /** Never rejects but when the disk cannot even hold how it ended. */
  outcome: Promise<SessionOutcome>
  cancel(reason: string): void
}

interface Running {
  session: RunningSession
  status: SessionStatus
  onStatus: (() => void) | undefined
}

/** One machine's worth of sessions. Only one process at a time may have its folder. */
export class SessionNode implements AsyncDisposable {
  readonly #options: NodeOptions
  readonly #stages: Stages
  readonly #deps: WorkDeps
  readonly #leases: SandboxLeases
  readonly #lock: LockFile
  readonly #running = new Map<string, Running>()
  readonly #turns = new Map<string, Promise<void>>()
  #isDraining = false
  /** Sessions that were under way when an earlier process ended. Those that are made again are running. */
  readonly recovered: readonly Recovered[]

  private constructor(options: NodeOptions, lock: LockFile, recovered: readonly Recovered[]) {
    this.#options = options
    this.#lock = lock
    this.recovered = recovered
    this.#stages = new Stages(options.widths)
    this.#leases = new SandboxLeases(options.clock, (error) => this.#problem(error))
    this.#deps = {
      ...options,
      leases: this.#leases,
      runTimes: new RunTimes(),
      startTimes: new RunTimes(),
      standby: new Slots(options.widths.postrun),
      scratch: gradingFolder(options.dir),
    }
    for (const { order, next } of recovered) if (next === 'again') this.#begin(order, { isContinued: true })
  }

  /** Takes over what an earlier process left: sandboxes are removed, sessions ended or made again. */
  static async start(options: NodeOptions): Promise<SessionNode> {
    const sessions = sessionsFolder(options.dir)
    await mkdir(sessions, { recursive: true, mode: 0o700 })
    const outcome = await acquireLockFile(join(options.dir, 'node.lock'), await identifyProcess())
    if (!('lock' in outcome)) {
      const who = outcome.heldBy === undefined ? 'another process' : `process ${outcome.heldBy.pid}`
      throw new RolloutError('config.invalid', `The folder ${options.dir} belongs to ${who}; give this node its own.`)
    }
    try {
      await removeLeftSandboxes(options)
      await rm(gradingFolder(options.dir), { recursive: true, force: true })
      await SessionFolder.removeUnbegun(sessions)
      const recovered: Recovered[] = []
      for (const folder of await SessionFolder.unfinished(sessions)) {
        const found = await recoverSession(folder, options)
        if (found !== undefined) recovered.push(found)
      }
      return new SessionNode(options, outcome.lock, recovered)
    } catch (error) {
      await outcome.lock.release()
      throw error
    }
  }

  get metrics(): NodeStageMetrics {
    return this.#stages.metrics()
  }

  get dir(): string {
    return this.#options.dir
  }

  get widths(): StageWidths {
    return this.#options.widths
  }

  progressOf(sessionId: string): SessionProgress | undefined {
    return this.#options.progressOf?.(sessionId)
  }

  get sessions(): readonly RunningSession[] {
    return [...this.#running.values()].map(({ session }) => session)
  }

  /**
   * Throws when it is draining, or has that attempt or a later one already. An earlier one is ended first, and what it left
   * is set aside: two attempts share nothing. `onStatus` is called whenever the session's status has changed.
   */
  submit(order: SessionOrder, onStatus?: () => void): RunningSession {
    const { sessionId, attempt } = order
    if (this.#isDraining)
      throw new RolloutError('config.invalid', `Node ${this.#options.nodeId} takes no more sessions.`)
    const earlier = this.#running.get(sessionId)?.session
    if (earlier !== undefined && earlier.attempt >= attempt)
      throw new RolloutError('config.invalid', `Session ${sessionId} runs already, as attempt ${earlier.attempt}.`)
    earlier?.cancel(`Attempt ${attempt} of the session takes its place.`)
    return this.#begin(order, { after: earlier?.outcome, onStatus })
  }

  #begin(
    order: SessionOrder,
    how: { isContinued?: boolean; after?: Promise<unknown>; onStatus?: () => void },
  ): RunningSession {
    const { sessionId, attempt } = order
    const cancel = new AbortController()
    const end = (error: unknown): void => cancel.abort(uncaught(error))
    const outcome = runInFaultScope(end, () => this.#run(order, how, cancel.signal)).finally(() => {
      if (this.#running.get(sessionId) === running) this.#running.delete(sessionId)
    })
    // Whoever wants to know asks; nobody has to.
    outcome.catch(() => {})
    const running: Running = {
      status: 'REGISTERED',
      onStatus: how.onStatus,
      session: {
        sessionId,
        attempt,
        outcome,
        get status() {
          return running.status
        },
        cancel: (reason) => cancel.abort(new Error(reason)),
      },
    }
    this.#running.set(sessionId, running)
    return running.session
  }

  async #run(
    order: SessionOrder,
    { after, isContinued = false }: { after?: Promise<unknown>; isContinued?: boolean },
    cancel: AbortSignal,
  ): Promise<SessionOutcome> {
    const { clock, artifacts: policy, dir } = this.#options
    await after?.catch(() => {})
    const folder = SessionFolder.of(sessionsFolder(dir), order.sessionId)
    await this.#inTurn(order.sessionId, async () => {
      if (!isContinued) await folder.setAside(pastFolder(dir))
      await folder.writeOrder(order)
    })
    const artifacts = new Artifacts(folder.artifacts, policy)
    const work = new RealWork(order, this.#deps, { artifacts, keepGrade: (grade) => folder.writeGrade(grade) })
    const plan = { priority: order.task.dispatch_priority, limits: toLimits(order.task, this.#options.budgets) }
    const deps = {
      stages: this.#stages,
      clock,
      note: (transition: Transition) => this.#note(order, folder, transition),
      problem: (error: unknown) => this.#problem(error, order.sessionId),
    }
    await using _ = { [Symbol.asyncDispose]: () => work.releaseBuild() }
    const end = await runSession(plan, work, deps, cancel)
    await artifacts.settle({ hasFailed: end.status !== 'COMPLETED' }).catch(deps.problem)
    const ended = toOutcome(order, end, {
      nodeId: this.#options.nodeId,
      timing: { ...end.timing, ...work.timing },
      ...(work.warnings.length === 0 ? {} : { warnings: work.warnings }),
      artifacts: artifacts.kept,
      endedAt: clock.now(),
    })
    const outcome = this.#options.recovery === 'report' ? await this.#report(order, ended, end.built, folder) : ended
    await folder.writeOutcome(outcome)
    return outcome
  }

  /**
   * What is left of an attempt that has ended is nobody's business any more, and is set aside; unless a later attempt has
   * taken its place already. Resolves with where it is now; undefined when nothing was moved.
   */
  forget(sessionId: string, attempt: number): Promise<string | undefined> {
    const { dir } = this.#options
    const folder = SessionFolder.of(sessionsFolder(dir), sessionId)
    return this.#inTurn(sessionId, async () => {
      const running = this.#running.get(sessionId)?.session
      return running?.attempt === attempt ? undefined : folder.setAside(pastFolder(dir), attempt)
    })
  }

  /** Only one at a time may move a session's folder. */
  async #inTurn<T>(sessionId: string, work: () => Promise<T>): Promise<T> {
    const before = this.#turns.get(sessionId)
    const mine = (before ?? Promise.resolve()).then(work)
    const settled = mine.then(
      () => {},
      () => {},
    )
    this.#turns.set(sessionId, settled)
    try {
      return await mine
    } finally {
      if (this.#turns.get(sessionId) === settled) this.#turns.delete(sessionId)
    }
  }

  /** One whose result cannot be kept has none, and is worth another try elsewhere. */
  async #report(
    order: SessionOrder,
    outcome: SessionOutcome,
    built: SessionBuild | undefined,
    folder: SessionFolder,
  ): Promise<SessionOutcome> {
    try {
      if (built === undefined) await writeResult(folder.result, { order, outcome })
      else await built.loaded.writeResult(folder.result, { order, outcome })
      return outcome
    } catch (error) {
      this.#problem(error, order.sessionId)
      return withoutResult(outcome, error)
    }
  }

  /** Stored, then told. A disk that is full costs the journal, not the session; whoever recovers it knows less. */
  async #note(order: SessionOrder, folder: SessionFolder, { from, to, at }: Transition): Promise<void> {
    const { sessionId, attempt, task } = order
    const running = this.#running.get(sessionId)
    const isCurrent = running?.session.attempt === attempt
    if (isCurrent) running.status = to
    try {
      await folder.note({ at, attempt, from, to })
    } catch (error) {
      this.#problem(error, sessionId)
    }
    this.#options.onEvent?.({
      type: 'session.state_changed',
      session_id: sessionId,
      task_id: task.task_id,
      attempt,
      status: to,
      previous: from,
      at,
    })
    if (to === 'READY') this.#options.onPrepared?.(order)
    if (isCurrent) running.onStatus?.()
  }

  #problem(error: unknown, sessionId?: string): void {
    this.#options.logger.warn({ err: error, sessionId }, 'something went wrong beside a session')
  }

  /** Takes no more sessions; resolves when those it has are over. */
  async drain(): Promise<void> {
    this.#isDraining = true
    while (this.#running.size > 0) await Promise.allSettled(this.sessions.map(({ outcome }) => outcome))
  }

  /** Ends what runs, in order. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isDraining = true
    for (const { session } of this.#running.values()) session.cancel('The node was told to stop.')
    await this.drain()
    this.#leases[Symbol.dispose]()
    await this.#lock.release()
  }
}

/** Not a cancellation: the session fails on a defect. */
function uncaught(cause: unknown): RolloutError {
  return new RolloutError('internal.bug', `An error that nothing caught: ${toFailure(cause).message}`, { cause })
}

function gradingFolder(dir: string): string {
  return join(dir, 'grading')
}

async function removeLeftSandboxes(options: NodeOptions): Promise<void> {
  for (const runtime of await options.usedRuntimes()) {
    const left = (await runtime.list()).filter(({ labels }) => labels['node'] === options.nodeId)
    for (const { id } of left) await runtime.remove(id)
  }
}

const SECOND = 1000

function toLimits({ timeout_seconds, budgets }: TaskRequest, usual: NodeBudgets): SessionLimits {
  const initMs = (budgets?.init ?? usual.init) * SECOND
  const agentMs = (budgets?.agent ?? timeout_seconds) * SECOND
  const sessionMs = budgets?.session == null ? initMs + agentMs : budgets.session * SECOND
  return { initMs, agentMs, evaluateMs: (budgets?.evaluate ?? usual.evaluate) * SECOND, sessionMs }
}

function toOutcome(
  { sessionId, attempt, task, runId }: SessionOrder,
  { status, failure, ending, grade, built }: SessionEnd<SessionBuild>,
  more: Pick<SessionOutcome, 'nodeId' | 'timing' | 'warnings' | 'artifacts' | 'endedAt'>,
): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId,
    taskId: task.task_id,
    ...(runId === undefined ? {} : { runId }),
    attempt,
    status,
    ...(failure === undefined ? {} : { failure }),
    ...(ending === undefined ? {} : { ending }),
    ...(grade === undefined ? {} : { grade }),
    ...(built === undefined ? {} : { counts: toCounts(built.facts.summary) }),
    ...more,
  }
}

/** Nothing of it can be trusted to be there, so nothing is said of it but why. */
export function withoutResult(outcome: SessionOutcome, error: unknown): SessionOutcome {
  const { ending: _, grade: __, counts: ___, failure: ____, ...rest } = outcome
  const cause = toFailure(error)
  const message = `The session ended ${outcome.status}, but its result could not be kept or delivered: ${cause.message}`
  return { ...rest, status: 'ERROR', failure: new RolloutError('store.unavailable', message).failure, artifacts: [] }
}
