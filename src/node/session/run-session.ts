import type { MonotonicClock } from '../../lib/async/clock.ts'
import type { Slot } from '../../lib/async/slots.ts'
import { attribute, needsControl, type FailureEvidence, type FailurePhase } from '../../model/attribution.ts'
import { failureClasses, RolloutError, toFailure, type Failure, type FailureCode } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { SessionStatus, SessionTiming } from '../../model/session.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import { SessionState, type Transition } from './session-states.ts'
import type { Stages } from './stages.ts'
import { within } from './time-limit.ts'

/** What is done for one session at each stage; when, for how long and after what is decided here. */
export interface SessionWork<Built> {
  /** Makes the sandbox ready. */
  prepare(signal: AbortSignal): Promise<void>
  /**
   * Runs the agent. When this settles nothing of the agent runs any more; told to stop, it gives how far the agent got.
   * Throws only for what happened before the agent started.
   */
  run(signal: AbortSignal): Promise<AgentRun>
  /** From here on nobody can call the model in the session's name, and all that was called is on disk. */
  seal(): Promise<void>
  build(): Promise<BuildOutcome<Built>>
  /** Undefined: there is nothing that grades. Called a second time when the first failed and a control passed. */
  grade(built: Built, ending: AgentEnding, signal: AbortSignal): Promise<EvalResult | undefined>
  /** Where the last grading failed. */
  gradingPhase(): FailurePhase
  /** Grades a sandbox that the agent never entered, with the same evaluator. Rejects when that fails. */
  control(failure: Failure, signal: AbortSignal): Promise<void>
  /** The lowest reward, for a failure that is the agent's doing; noted with the session. Undefined: as for `grade`. */
  refuse(failure: Failure, ending: AgentEnding): Promise<EvalResult | undefined>
  /** Removes all there is, also what is still being made. Called once, at the end, whatever happened. */
  tearDown(): Promise<void>
}

export interface AgentRun {
  exitCode: number | null
  isOutOfMemory: boolean
  /** What the exit code means to this harness. */
  end: 'finished' | 'gave-up' | 'limit-reached'
  /** What the ending looks like when the agent had no part in it: a harness that did not start, a sandbox that is gone. */
  suspicion?: Failure
  /** Its last words, for people. */
  message?: string
}

export interface BuildOutcome<Built> {
  built: Built
  /** Calls that the model answered, in whole or in part. */
  answers: number
  /** Why the last call got no answer, if it did not: the agent ended because of it, whatever its exit code says. */
  lastFailure?: Failure
  /** Whether the engine answers other requests while it still fails for that of the last call; absent: not tried. */
  engineControl?: 'passed' | 'failed'
  /** Why the record is not whole, if it is not. */
  incomplete?: Failure
}

export interface SessionLimits {
  initMs: number
  agentMs: number
  evaluateMs: number
  /** Of the first two together. Grading has its own in any case: a session whose time is over can still be graded. */
  sessionMs: number
}

/** How a session ended. */
export interface SessionEnd<Built> {
  status: Extract<SessionStatus, 'COMPLETED' | 'ERROR' | 'TIMEOUT' | 'CANCELLED'>
  /** Absent when nothing failed. Of an ending that is the policy's doing there may be a reward as well. */
  failure?: Failure
  /** Absent when the agent never ran, or its run was not its own doing. */
  ending?: AgentEnding
  built?: Built
  grade?: EvalResult
  timing: SessionTiming
}

export interface SessionDeps {
  stages: Stages
  clock: MonotonicClock
  /** Stores and tells of each transition. */
  note(transition: Transition): Promise<void>
  /** For operators: what went wrong without any bearing on the session. */
  problem(error: unknown): void
}

/**
 * The life of one session, from waiting to its one terminal state. Never rejects for what its work throws: a failed
 * session is data. Once the agent has run, neither a cancel nor a failure keeps what was captured from being built.
 */
export async function runSession<Built>(
  order: { priority: number; limits: SessionLimits },
  work: SessionWork<Built>,
  deps: SessionDeps,
  cancel: AbortSignal,
): Promise<SessionEnd<Built>> {
  const life = new Life(order, work, deps, cancel)
  try {
    await life.untilAgentEnded()
    return await life.finish()
  } finally {
    life.leave()
  }
}

class Life<Built> {
  readonly #order: { priority: number; limits: SessionLimits }
  readonly #work: SessionWork<Built>
  readonly #deps: SessionDeps
  readonly #cancel: AbortSignal
  readonly #state: SessionState
  readonly #end: Partial<SessionEnd<Built>> = {}
  #slot: Slot | undefined
  #spentMs = 0
  #hasRun = false
  #suspicion: Failure | undefined
  #answers = 0
  /** Whether the last grading was ended because its time was up. */
  #isGradingOver = false

  constructor(
    order: { priority: number; limits: SessionLimits },
    work: SessionWork<Built>,
    deps: SessionDeps,
    cancel: AbortSignal,
  ) {
    this.#order = order
    this.#work = work
    this.#deps = deps
    this.#cancel = cancel
    this.#state = new SessionState(deps.clock, (transition) => deps.note(transition))
  }

  async untilAgentEnded(): Promise<void> {
    const { stages } = this.#deps
    const { limits } = this.#order
    try {
      await this.#enter('init')
      await this.#state.to('INITIALIZING')
      await this.#timed(limits.initMs, 'session.init-timeout', 'Making the sandbox ready', (signal) =>
        this.#work.prepare(signal),
      )
      if (stages.ready.width > 0) await this.#enter('ready')
      await this.#state.to('READY')
      await this.#enter('run')
      await this.#state.to('RUNNING')
      this.#hasRun = true
      await this.#runAgent()
    } catch (error) {
      this.#fail(error)
    }
  }

  async #runAgent(): Promise<void> {
    let overtime: RolloutError | undefined
    try {
      const run = await this.#timed(this.#order.limits.agentMs, 'session.agent-timeout', 'The agent', (signal) => {
        signal.addEventListener('abort', () => {
          if (signal.reason instanceof RolloutError && signal.reason.code === 'session.agent-timeout')
            overtime = signal.reason
        })
        return this.#work.run(signal)
      })
      this.#cancel.throwIfAborted()
      if (overtime) this.#failBecause(overtime.failure, { kind: 'timeout', exitCode: run.exitCode })
      else this.#endAs(run)
    } catch (error) {
      // Work that would rather reject when told to stop has still told how the agent ended: by its time.
      if (error === overtime && overtime !== undefined) {
        this.#failBecause(overtime.failure, { kind: 'timeout', exitCode: null })
      } else throw error
    } finally {
      await this.#work.seal()
    }
  }

  #endAs({ exitCode, isOutOfMemory, end, message, suspicion }: AgentRun): void {
    this.#suspicion = suspicion
    if (end === 'finished') this.#end.ending = { kind: 'completed', exitCode }
    else if (end === 'limit-reached') this.#end.ending = { kind: 'truncated', exitCode }
    else {
      const code = isOutOfMemory ? 'harness.out-of-memory' : 'harness.exit-nonzero'
      const told = message === undefined || message === '' ? '' : `: ${message}`
      const how = exitCode === null ? 'was ended by a signal' : `ended with exit code ${exitCode}`
      this.#failBecause(new RolloutError(code, `The harness ${how}${told}`).failure, { kind: 'failed', exitCode })
    }
  }

  async finish(): Promise<SessionEnd<Built>> {
    if (this.#state.status !== 'REGISTERED') {
      await this.#enter('backlog', NEVER)
      await this.#state.to('POST_RUN')
      await this.#enter('postrun', NEVER)
      try {
        if (this.#hasRun) await this.#build().catch((error: unknown) => this.#refuseUnbuilt(error))
        this.#cancel.throwIfAborted()
        if (this.#mayGrade()) await this.#grade()
      } catch (error) {
        this.#fail(error)
      }
    }
    await this.#tearDown()
    const status = this.#status()
    // What they say of themselves must be so when they are told, so places are given up first.
    const timing = this.#timing()
    await this.#state.to(status)
    return { ...this.#end, status, timing }
  }

  async #build(): Promise<void> {
    await this.#state.to('BUILDING')
    const { built, ...found } = await this.#work.build()
    this.#end.built = built
    this.#answers = found.answers
    const { ending } = this.#end
    if (ending === undefined) return
    const failure = notThePolicys(ending, { failure: this.#end.failure, suspicion: this.#suspicion }, found)
    if (failure !== undefined) this.#replaceEnding(failure)
    else if (found.lastFailure?.code === 'request.context-overflow' && ending.kind !== 'timeout') {
      this.#end.ending = { ...ending, kind: 'truncated' }
      delete this.#end.failure
    }
  }

  /** An agent whose calls cannot be built because of what it called gets the lowest reward. Throws other errors. */
  async #refuseUnbuilt(error: unknown): Promise<void> {
    const { ending } = this.#end
    const failure = toFailure(error)
    const isPolicys = attribute(failure.code, { phase: 'build', answers: this.#answers }) === 'policy'
    if (!isPolicys || ending === undefined) throw error
    this.#cancel.throwIfAborted()
    this.#end.failure = failure
    const grade = await this.#work.refuse(failure, ending)
    if (grade !== undefined) this.#end.grade = grade
  }

  /** The agent ended for a reason that was not its own, so how it ended says nothing of it. */
  #replaceEnding(failure: Failure): void {
    this.#end.failure = failure
    delete this.#end.ending
  }

  #mayGrade(): boolean {
    return this.#end.ending !== undefined && this.#end.built !== undefined
  }

  async #grade(): Promise<void> {
    await this.#state.to('EVALUATING')
    const grade = await this.#gradeOnce().catch((error: unknown) => this.#settle(error))
    this.#cancel.throwIfAborted()
    if (grade !== undefined) this.#end.grade = grade
  }

  #gradeOnce(): Promise<EvalResult | undefined> {
    const { built, ending } = this.#end
    return this.#timedGrading((signal) => this.#work.grade(built!, ending!, signal))
  }

  #timedGrading<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    this.#isGradingOver = false
    return this.#timed(this.#order.limits.evaluateMs, 'evaluator.timeout', 'Grading', (signal) => {
      signal.addEventListener('abort', () => (this.#isGradingOver = true))
      return work(signal)
    })
  }

  /**
   * Decides whose doing a failed grading was. Throws the failure when it is not the agent's. Where a control shows that
   * it may be the agent's, the agent's files are graded once more: a failure of ours seldom happens twice.
   */
  async #settle(error: unknown): Promise<EvalResult | undefined> {
    this.#cancel.throwIfAborted()
    const first = this.#suspect(error)
    const isOverTime = this.#isGradingOver
    if (needsControl(first.failure.code, first.evidence)) {
      const control = await this.#timedGrading((signal) => this.#work.control(first.failure, signal)).then(
        () => 'passed' as const,
        () => 'failed' as const,
      )
      this.#cancel.throwIfAborted()
      first.evidence.control = control
    }
    if (attribute(first.failure.code, first.evidence) === 'infrastructure') throw error
    // Grading that takes too long would take as long again.
    if (isOverTime) return this.#work.refuse(first.failure, this.#end.ending!)
    try {
      return await this.#gradeOnce()
    } catch (again) {
      this.#cancel.throwIfAborted()
      const { failure, evidence } = this.#suspect(again)
      if (attribute(failure.code, { ...evidence, control: 'passed' }) === 'infrastructure') throw again
      return this.#work.refuse(failure, this.#end.ending!)
    }
  }

  #suspect(error: unknown): { failure: Failure; evidence: FailureEvidence } {
    return { failure: toFailure(error), evidence: { phase: this.#work.gradingPhase(), answers: this.#answers } }
  }

  /** That it could not be removed changes nothing of what the session was worth; a sweep comes by later. */
  async #tearDown(): Promise<void> {
    const { clock } = this.#deps
    const limit = { ms: TEAR_DOWN_MS, code: 'runtime.gone', message: 'Removing the sandbox took too long.' } as const
    try {
      await within(limit, { clock, signal: NEVER }, () => this.#work.tearDown())
    } catch (error) {
      this.#deps.problem(error)
    }
    this.leave()
  }

  /** Gives up the place it has. Idempotent. */
  leave(): void {
    this.#slot?.release()
    this.#slot = undefined
  }

  async #enter(stage: 'init' | 'ready' | 'run' | 'backlog' | 'postrun', signal = this.#cancel): Promise<void> {
    const next = await this.#deps.stages[stage].acquire(this.#order.priority, signal)
    this.leave()
    this.#slot = next
    signal.throwIfAborted()
  }

  async #timed<T>(
    budgetMs: number,
    code: 'session.init-timeout' | 'session.agent-timeout' | 'evaluator.timeout',
    what: string,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const { clock } = this.#deps
    const leftMs = code === 'evaluator.timeout' ? Infinity : this.#order.limits.sessionMs - this.#spentMs
    const ms = Math.max(0, Math.min(budgetMs, leftMs))
    const which = leftMs < budgetMs ? 'what was left of the whole session’s time' : 'the time for it'
    const message = `${what} took longer than ${which}, ${(ms / 1000).toFixed(1)} s.`
    const startedAt = clock.monotonic()
    try {
      return await within({ ms, code, message }, { clock, signal: this.#cancel }, work)
    } finally {
      this.#spentMs += clock.monotonic() - startedAt
    }
  }

  #failBecause(failure: Failure, ending: AgentEnding): void {
    this.#end.failure = failure
    this.#end.ending = ending
  }

  #fail(error: unknown): void {
    this.#end.failure = this.#cancel.aborted ? cancelFailure(this.#cancel) : toFailure(error)
    // How the agent ended is known by the time it is graded, whatever becomes of the grade.
    if (this.#state.status !== 'EVALUATING') delete this.#end.ending
  }

  #status(): SessionEnd<Built>['status'] {
    const { failure } = this.#end
    if (failure === undefined) return 'COMPLETED'
    if (failure.code === 'session.cancelled') return 'CANCELLED'
    return TIMEOUTS.has(failure.code) ? 'TIMEOUT' : 'ERROR'
  }

  #timing(): SessionTiming {
    const at = (status: SessionStatus): number | undefined => this.#state.since(status)
    const between = (from: number | undefined, to: number | undefined): number | null =>
      from === undefined || to === undefined ? null : to - from
    const over = this.#deps.clock.monotonic()
    return {
      register_to_init_queue_ms: between(at('REGISTERED'), at('INITIALIZING')),
      init_ms: between(at('INITIALIZING'), at('READY') ?? at('POST_RUN')),
      ready_queue_ms: between(at('READY'), at('RUNNING') ?? at('POST_RUN')),
      run_ms: between(at('RUNNING'), at('POST_RUN')),
      postrun_ms: between(at('POST_RUN'), over),
    }
  }
}

/** Why an ending is not the policy's doing, whatever it looks like; undefined when it is. */
function notThePolicys(
  { kind }: AgentEnding,
  { failure, suspicion }: { failure: Failure | undefined; suspicion: Failure | undefined },
  { answers, lastFailure, engineControl, incomplete }: Omit<BuildOutcome<unknown>, 'built'>,
): Failure | undefined {
  if (incomplete !== undefined) return incomplete
  const isOurs = (failed: Failure, evidence: Omit<FailureEvidence, 'answers'>): boolean =>
    attribute(failed.code, { ...evidence, answers }) === 'infrastructure'
  const blame = lastFailure === undefined ? undefined : failureClasses[lastFailure.code].blame
  const control = engineControl === undefined ? {} : { control: engineControl }
  if (lastFailure !== undefined && blame === 'infrastructure' && isOurs(lastFailure, { phase: 'call', ...control })) {
    return lastFailure
  }
  if (suspicion !== undefined && isOurs(suspicion, { phase: 'run' })) return suspicion
  if (answers > 0 || kind === 'completed') return undefined
  // An engine that refuses every request was set up wrongly; one that refuses after a while was asked for nonsense.
  if (blame === 'caller') return lastFailure
  const last =
    lastFailure === undefined ? undefined : `Its last call failed, ${lastFailure.code}: ${lastFailure.message}`
  const how = last ?? failure?.message ?? `The agent ended (${kind})`
  return new RolloutError('harness.no-answer', `The model had answered nothing yet. ${how}`).failure
}

/** A sandbox is to be gone within two seconds; a cluster may take longer. */
const TEAR_DOWN_MS = 60_000

const TIMEOUTS: ReadonlySet<FailureCode> = new Set([
  'session.init-timeout',
  'session.agent-timeout',
  'evaluator.timeout',
])

/** For what a cancel must not keep from happening. */
const NEVER = new AbortController().signal

/** A session is also ended for a defect, and then the signal says which. */
function cancelFailure(cancel: AbortSignal): Failure {
  const { reason } = cancel as { reason: unknown }
  if (reason instanceof RolloutError) return reason.failure
  return new RolloutError('session.cancelled', reasonOf(cancel)).failure
}

function reasonOf({ reason }: AbortSignal): string {
  return reason instanceof Error ? reason.message : String(reason)
}
