import { createHash } from 'node:crypto'
import { failureClasses, type FailureCode } from '../../model/failure.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Decision } from './campaign-journal.ts'

export interface PlanOptions {
  tasks: readonly TaskRequest[]
  runId: string
  /** Accepted trajectories that each task should have. */
  accept: number
  /** Limit of the sessions of a task whose end the agent caused. */
  attempts: number
  /** Limit of the sessions of a task that failed for another reason. */
  refills: number
}

export interface PlannedSession {
  task: TaskRequest
  sessionId: string
}

interface TaskPlan {
  task: TaskRequest
  /** Number of the last session. */
  started: number
  running: number
  accepted: number
  rejected: number
  failed: number
  /** Whether the task cannot run: another session would fail like the last. */
  isStopped: boolean
  digests: Set<string>
}

/**
 * Knows how many sessions each task had, and which session is next. Session ids are derived from the run, the task and the
 * number of the session, so that a session cannot start twice under two ids.
 */
export class CampaignPlan {
  readonly #options: PlanOptions
  readonly #tasks: ReadonlyMap<string, TaskPlan>
  readonly #byPrefix: ReadonlyMap<string, TaskPlan>

  constructor(options: PlanOptions) {
    this.#options = options
    const plans = options.tasks.map((task): TaskPlan => ({
      task,
      started: 0,
      running: 0,
      accepted: 0,
      rejected: 0,
      failed: 0,
      isStopped: false,
      digests: new Set(),
    }))
    this.#tasks = new Map(plans.map((plan) => [plan.task.task_id, plan]))
    this.#byPrefix = new Map(plans.map((plan) => [prefixOf(options.runId, plan.task), plan]))
  }

  /** Registers a session of an earlier process. */
  addStarted(sessionId: string): void {
    const [, prefix = '', number = '0'] = /^(.*)_(\d+)$/.exec(sessionId) ?? []
    const plan = this.#byPrefix.get(prefix)
    if (plan !== undefined) plan.started = Math.max(plan.started, Number(number))
  }

  /** Registers that a session of an earlier process runs again. */
  addRunning(taskId: string): void {
    this.#planOf(taskId).running += 1
  }

  /** Returns the next session and counts it as running: of the task with the fewest sessions so far. */
  next(): PlannedSession | undefined {
    let chosen: TaskPlan | undefined
    for (const plan of this.#tasks.values()) {
      if (this.#isOpen(plan) && plan.started < (chosen?.started ?? Infinity)) chosen = plan
    }
    if (chosen === undefined) return undefined
    chosen.started += 1
    chosen.running += 1
    const { task, started } = chosen
    return { task, sessionId: `${prefixOf(this.#options.runId, task)}_${String(started).padStart(4, '0')}` }
  }

  /** Never starts more sessions than are missing, so that a task does not get more than `accept` trajectories. */
  #isOpen({ isStopped, running, accepted, rejected, failed }: TaskPlan): boolean {
    const { accept, attempts, refills } = this.#options
    return !isStopped && accepted + running < accept && accepted + rejected + running < attempts && failed <= refills
  }

  /** Counts a decision. `wasRunning`: the session was counted as running. */
  add({ sessionId, taskId, verdict, reason, digest }: Decision, { wasRunning }: { wasRunning: boolean }): void {
    this.addStarted(sessionId)
    const plan = this.#planOf(taskId)
    if (wasRunning) plan.running -= 1
    switch (verdict) {
      case 'accepted':
        plan.accepted += 1
        if (digest !== undefined) plan.digests.add(digest)
        return
      case 'rejected':
        plan.rejected += 1
        return
      case 'failed':
        // An interrupt of the campaign is not a failure.
        if (reason === 'session.cancelled') return
        plan.failed += 1
        if (!isRetryable(reason)) plan.isStopped = true
    }
  }

  hasDigest(taskId: string, digest: string): boolean {
    return this.#planOf(taskId).digests.has(digest)
  }

  /** Number of sessions that were started, also by earlier processes. */
  get started(): number {
    return this.#sum(({ started }) => started)
  }

  get accepted(): number {
    return this.#sum(({ accepted }) => accepted)
  }

  /** Number of accepted trajectories when every task has as many as it should. */
  get target(): number {
    return this.#options.accept * this.#tasks.size
  }

  /** Number of accepted trajectories if every task that may still run succeeds. */
  get reachable(): number {
    const { accept } = this.#options
    return this.#sum((plan) => (plan.running > 0 || this.#isOpen(plan) ? accept : plan.accepted))
  }

  #sum(pick: (plan: TaskPlan) => number): number {
    return [...this.#tasks.values()].reduce((total, plan) => total + pick(plan), 0)
  }

  #planOf(taskId: string): TaskPlan {
    const plan = this.#tasks.get(taskId)
    if (plan === undefined) throw new RangeError(`The campaign has no task ${taskId}`)
    return plan
  }
}

function prefixOf(runId: string, { task_id: taskId }: TaskRequest): string {
  return `ses_${createHash('sha256').update(`${runId}\n${taskId}`).digest('hex').slice(0, 24)}`
}

function isRetryable(code: string | undefined): boolean {
  const found = failureClasses[code as FailureCode] as { retryable: boolean } | undefined
  return found?.retryable ?? false
}
