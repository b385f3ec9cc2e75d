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
import type { SessionProgress, SessionStatus } from '../model/session.ts'
import type { TaskRequest } from '../model/task.ts'
import { SandboxLeases } from './sandbox/keep-alive.ts'
import type { Runtime } from './sandbox/runtimes/runtime.ts'
import { recoverSession, type Recovered } from './session/recover-session.ts'
import { runSession } from './session/run-session.ts'
import { RunTimes } from './session/run-times.ts'
import { SandboxedSession } from './session/sandboxed-session.ts'
import type { SandboxedSessionDeps } from './session/session-deps.ts'
import { pastFolder, SessionFolder, sessionsFolder } from './session/session-folder.ts'
import type { Transition } from './session/session-states.ts'
import { Stages, type StageWidths } from './session/stages.ts'
import type { SessionLimits } from './session/time-limit.ts'

export interface NodeOptions extends Omit<
  SandboxedSessionDeps,
  'leases' | 'runTimes' | 'startTimes' | 'standby' | 'scratch'
> {
  /** The folder of the node: sessions below `sessions`, files that are being graded below `grading`. */
  dir: string
  widths: StageWidths
  budgets: NodeBudgets
  /** The runtimes in which an earlier process with the same folder may have left sandboxes. */
  usedRuntimes(): Promise<Runtime[]>
  /**
   * What happens to unfinished sessions of an earlier process. `again` (default): sessions without captured calls start
   * again. `report`: the server decides; results are written to files, for a worker to deliver.
   */
  recovery?: 'again' | 'report'
  /** Returns the number of model calls and tokens of a running session. Absent: calls are not counted. */
  progressOf?: (sessionId: string) => SessionProgress | undefined
  /** Called when the sandbox of a session is ready, and so its image and prepared state are cached on this machine. */
  onPrepared?: (order: SessionOrder) => void
  logger: Logger
  onEvent?: (event: SessionEvent) => void
}

/** Time limits in seconds for tasks that set none. */
export interface NodeBudgets {
  init: number
  evaluate: number
}

/** A state transition of a session. */
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

export interface RunningSession {
  readonly sessionId: string
  readonly attempt: number
  readonly status: SessionStatus
  /** Rejects only if the outcome could not be written to disk. */
  outcome: Promise<SessionOutcome>
  cancel(reason: string): void
}

interface Running {
  session: RunningSession
  status: SessionStatus
  onStatus: (() => void) | undefined
}

/** Runs the sessions of one machine. At most one process at a time may use the folder of a node. */
export class SessionNode implements AsyncDisposable {
  readonly #options: NodeOptions
  readonly #stages: Stages
  readonly #deps: SandboxedSessionDeps
  readonly #leases: SandboxLeases
  readonly #lock: LockFile
  readonly #running = new Map<string, Running>()
  /** The last operation on the folder of each session. */
  readonly #folderQueues = new Map<string, Promise<void>>()
  #isDraining = false
  /** Unfinished sessions of an earlier process. Those with `next: 'again'` are running. */
  readonly recovered: readonly Recovered[]

  private constructor(options: NodeOptions, lock: LockFile, recovered: readonly Recovered[]) {
    this.#options = options
    this.#lock = lock
    this.recovered = recovered
    this.#stages = new Stages(options.widths)
    this.#leases = new SandboxLeases(options.clock, (error) => this.#logError(error))
    this.#deps = {
      ...options,
      leases: this.#leases,
      runTimes: new RunTimes(),
      startTimes: new RunTimes(),
      standby: new Slots(options.widths.postrun),
      scratch: gradingFolder(options.dir),
    }
    for (const { order, next } of recovered) if (next === 'again') this.#start(order, { isContinued: true })
  }

  /** Removes the sandboxes of an earlier process with the same folder, and ends or restarts its sessions. */
  static async start(options: NodeOptions): Promise<SessionNode> {
    const sessions = sessionsFolder(options.dir)
    await mkdir(sessions, { recursive: true, mode: 0o700 })
    const outcome = await acquireLockFile(join(options.dir, 'node.lock'), await identifyProcess())
    if (!('lock' in outcome)) {
      const owner = outcome.heldBy === undefined ? 'another process' : `process ${outcome.heldBy.pid}`
      throw new RolloutError(
        'config.invalid',
        `The folder ${options.dir} belongs to ${owner}. Use another folder for this node.`,
      )
    }
    try {
      await removeLeftSandboxes(options)
      await rm(gradingFolder(options.dir), { recursive: true, force: true })
      await SessionFolder.removeEmpty(sessions)
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
   * Starts a session. Throws if the node is draining, or runs this attempt or a later attempt of the session. Cancels an
   * earlier attempt and moves its files away first: two attempts share nothing. Calls `onStatus` after each transition.
   */
  submit(order: SessionOrder, onStatus?: () => void): RunningSession {
    const { sessionId, attempt } = order
    if (this.#isDraining)
      throw new RolloutError('config.invalid', `Node ${this.#options.nodeId} is draining and accepts no new sessions.`)
    const earlier = this.#running.get(sessionId)?.session
    if (earlier !== undefined && earlier.attempt >= attempt)
      throw new RolloutError(
        'config.invalid',
        `Session ${sessionId} is already running, as attempt ${earlier.attempt}.`,
      )
    earlier?.cancel(`Attempt ${attempt} replaces this attempt.`)
    return this.#start(order, { after: earlier?.outcome, onStatus })
  }

  #start(
    order: SessionOrder,
    how: { isContinued?: boolean; after?: Promise<unknown>; onStatus?: () => void },
  ): RunningSession {
    const { sessionId, attempt } = order
    const cancel = new AbortController()
    const end = (error: unknown): void => cancel.abort(uncaught(error))
    const outcome = runInFaultScope(end, () => this.#run(order, how, cancel.signal)).finally(() => {
      if (this.#running.get(sessionId) === running) this.#running.delete(sessionId)
    })
    // Callers need not read the outcome.
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
    const { clock, dir, budgets } = this.#options
    const { sessionId, task } = order
    await after?.catch(() => {})
    const folder = SessionFolder.of(sessionsFolder(dir), sessionId)
    await this.#queueFolder(sessionId, async () => {
      if (!isContinued) await folder.archive(pastFolder(dir))
      await folder.writeOrder(order)
    })
    const onError = (error: unknown): void => this.#logError(error, sessionId)
    const onTransition = (transition: Transition): Promise<void> => this.#publish(order, folder, transition)
    await using steps = new SandboxedSession(order, this.#deps, { folder, onError })
    const plan = { priority: task.dispatch_priority, limits: toLimits(task, budgets) }
    return await runSession(plan, steps, { stages: this.#stages, clock, onTransition, onError }, cancel)
  }

  /**
   * Moves the files of an ended attempt to the folder of past sessions, unless a later attempt has replaced them. Resolves
   * with the new path; undefined if nothing was moved.
   */
  archive(sessionId: string, attempt: number): Promise<string | undefined> {
    const { dir } = this.#options
    const folder = SessionFolder.of(sessionsFolder(dir), sessionId)
    return this.#queueFolder(sessionId, async () => {
      const running = this.#running.get(sessionId)?.session
      return running?.attempt === attempt ? undefined : folder.archive(pastFolder(dir), attempt)
    })
  }

  /** Runs operations on the folder of a session one after the other. */
  async #queueFolder<T>(sessionId: string, work: () => Promise<T>): Promise<T> {
    const result = (this.#folderQueues.get(sessionId) ?? Promise.resolve()).then(work)
    const settled = result.then(
      () => {},
      () => {},
    )
    this.#folderQueues.set(sessionId, settled)
    try {
      return await result
    } finally {
      if (this.#folderQueues.get(sessionId) === settled) this.#folderQueues.delete(sessionId)
    }
  }

  /** Stores a transition, then publishes it. A full disk costs the journal entry, not the session. */
  async #publish(order: SessionOrder, folder: SessionFolder, { from, to, at }: Transition): Promise<void> {
    const { sessionId, attempt, task } = order
    const running = this.#running.get(sessionId)
    const isCurrent = running?.session.attempt === attempt
    if (isCurrent) running.status = to
    try {
      await folder.appendJournal({ at, attempt, from, to })
    } catch (error) {
      this.#logError(error, sessionId)
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

  #logError(error: unknown, sessionId?: string): void {
    this.#options.logger.warn({ err: error, sessionId }, 'error that does not affect the outcome of a session')
  }

  /** Rejects new sessions from now on; resolves when all running sessions have ended. */
  async drain(): Promise<void> {
    this.#isDraining = true
    while (this.#running.size > 0) await Promise.allSettled(this.sessions.map(({ outcome }) => outcome))
  }

  /** Cancels all sessions and waits for them. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isDraining = true
    for (const { session } of this.#running.values()) session.cancel('The node is stopping.')
    await this.drain()
    this.#leases[Symbol.dispose]()
    await this.#lock.release()
  }
}

/** The session fails because of a defect; it is not cancelled. */
function uncaught(cause: unknown): RolloutError {
  return new RolloutError('internal.bug', `Uncaught error: ${toFailure(cause).message}`, { cause })
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

function toLimits({ timeout_seconds, budgets }: TaskRequest, defaults: NodeBudgets): SessionLimits {
  const initMs = (budgets?.init ?? defaults.init) * SECOND
  const agentMs = (budgets?.agent ?? timeout_seconds) * SECOND
  const sessionMs = budgets?.session == null ? initMs + agentMs : budgets.session * SECOND
  return { initMs, agentMs, evaluateMs: (budgets?.evaluate ?? defaults.evaluate) * SECOND, sessionMs }
}
