import type { MonotonicClock } from '../../lib/async/clock.ts'
import { attribute, type FailurePhase } from '../../model/attribution.ts'
import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { SessionStatus, SessionTiming } from '../../model/session.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import {
  attributeEnding,
  runHarness,
  type AgentRun,
  type BuildOutcome,
  type HarnessEnding,
} from './attribute-ending.ts'
import { gradeWithControl } from './grade-with-control.ts'
import { SessionState, toTerminalStatus, type Transition } from './session-states.ts'
import { StageSlot, type Stages } from './stages.ts'
import { StepTimer, withTimeLimit, type SessionLimits } from './time-limit.ts'

/** The steps of one session. `runSession` decides when a step runs, for how long, and after which other step. */
export interface SessionSteps<Built, Outcome> {
  /** Finds the harness, evaluator and runtime of the task, and opens the session at the gateway. */
  prepare(): Promise<void>
  startSandbox(signal: AbortSignal): Promise<void>
  /**
   * Runs the harness. No process of the harness runs once the promise settles; after an abort it resolves with the state
   * that the harness had reached. Rejects only for failures before the harness started.
   */
  run(signal: AbortSignal): Promise<AgentRun>
  /** Closes the session at the gateway: it accepts no further model call, and all calls are on disk. */
  seal(): Promise<void>
  build(): Promise<BuildOutcome<Built>>
  /** Undefined if the task has no evaluator. Called again if the first call failed and a control passed. */
  grade(built: Built, ending: AgentEnding, signal: AbortSignal): Promise<EvalResult | undefined>
  /** The phase in which the last grading failed. */
  gradingPhase(): FailurePhase
  /** Grades a sandbox that the agent never entered, with the same evaluator. Rejects if that fails. */
  control(failure: Failure, signal: AbortSignal): Promise<void>
  /** Returns and stores the lowest reward, for a failure that the agent caused. Undefined if the task has no evaluator. */
  refuse(failure: Failure, ending: AgentEnding): Promise<EvalResult | undefined>
  /** Removes all sandboxes, including those that are still starting. Called exactly once. */
  tearDown(): Promise<void>
  /** Stores the outcome of the session. */
  report(end: SessionEnd<Built>): Promise<Outcome>
}

/** How a session ended. */
export interface SessionEnd<Built> {
  status: Extract<SessionStatus, 'COMPLETED' | 'ERROR' | 'TIMEOUT' | 'CANCELLED'>
  /** Absent if nothing failed. A failure that the policy caused may have a reward as well. */
  failure?: Failure
  /** Absent if the harness never ran, or its ending was not caused by the agent. */
  ending?: AgentEnding
  built?: Built
  grade?: EvalResult
  timing: SessionTiming
}

export interface SessionDeps {
  stages: Stages
  clock: MonotonicClock
  /** Stores and publishes each state transition. */
  onTransition: (transition: Transition) => Promise<void>
  /** Logs an error that does not affect the session. */
  onError: (error: unknown) => void
}

/**
 * Runs one session to its terminal state. Does not reject for errors of `prepare` to `tearDown`: a failed session is
 * data. Once the harness has run, neither a cancel nor a failure prevents the captured calls from being built.
 */
export async function runSession<Built, Outcome>(
  { priority, limits }: { priority: number; limits: SessionLimits },
  steps: SessionSteps<Built, Outcome>,
  { stages, clock, onTransition, onError }: SessionDeps,
  cancel: AbortSignal,
): Promise<Outcome> {
  const state = new SessionState(clock, onTransition)
  const timer = new StepTimer(limits, clock, cancel)
  using slot = new StageSlot(stages, priority)
  let end: HarnessEnding & { built?: Built; grade?: EvalResult } = {}
  let hasRun = false

  try {
    await slot.moveTo('init', cancel)
    await state.to('INITIALIZING')
    await timer.limit('init', async (signal) => {
      await steps.prepare()
      await steps.startSandbox(signal)
    })
    if (stages.ready.width > 0) await slot.moveTo('ready', cancel)
    await state.to('READY')
    await slot.moveTo('run', cancel)
    await state.to('RUNNING')
    hasRun = true
    try {
      end = await timer.limit('agent', (signal) => runHarness(steps, signal))
      cancel.throwIfAborted()
    } finally {
      await steps.seal()
    }
  } catch (error) {
    end = { failure: whyFailed(error, cancel) }
  }

  if (state.status !== 'REGISTERED') {
    await slot.moveTo('backlog')
    await state.to('POST_RUN')
    await slot.moveTo('postrun')
    try {
      if (hasRun) {
        await state.to('BUILDING')
        const found = await steps.build().catch((error: unknown) => refuseUnbuilt(error))
        end = found === undefined ? end : { ...attributeEnding(end, found), built: found.built }
        cancel.throwIfAborted()
        if (found !== undefined && end.ending !== undefined) {
          await state.to('EVALUATING')
          end.grade = await gradeWithControl(steps, { ...found, ending: end.ending }, timer, cancel)
        }
      }
      cancel.throwIfAborted()
    } catch (error) {
      const { built, ending } = end
      // How the agent ended is known before grading starts, whether grading succeeds or not.
      end = { failure: whyFailed(error, cancel), built, ending: state.status === 'EVALUATING' ? ending : undefined }
    }
  }

  const limit = { ms: TEAR_DOWN_MS, code: 'runtime.gone', message: 'Removing the sandbox took too long.' } as const
  // A sandbox that could not be removed does not change the outcome; the node removes it at its next start.
  await withTimeLimit(limit, { clock, signal: NEVER }, () => steps.tearDown()).catch(onError)
  // Released before the last transition is published, so that metrics agree with it.
  slot.release()
  const status = toTerminalStatus(end.failure)
  const timing = state.timing()
  await state.to(status)
  return await steps.report({ ...end, status, timing })

  /** Gives the lowest reward to an agent whose own calls cannot be built, such as too many. Throws all other errors. */
  async function refuseUnbuilt(error: unknown): Promise<undefined> {
    const failure = toFailure(error)
    const isAgents = attribute(failure.code, { phase: 'build', answers: 0 }) === 'policy'
    if (!isAgents || end.ending === undefined) throw error
    cancel.throwIfAborted()
    end = { failure, ending: end.ending, grade: await steps.refuse(failure, end.ending) }
  }
}

/** Most runtimes remove a sandbox within two seconds; a cluster may take longer. */
const TEAR_DOWN_MS = 60_000
/** A cancel must not prevent the teardown. */
const NEVER = new AbortController().signal

/** After a cancel the reason of the cancel; it is a RolloutError if a defect ended the session. */
function whyFailed(error: unknown, cancel: AbortSignal): Failure {
  if (!cancel.aborted) return toFailure(error)
  const { reason } = cancel as { reason: unknown }
  if (reason instanceof RolloutError) return reason.failure
  return new RolloutError('session.cancelled', reason instanceof Error ? reason.message : String(reason)).failure
}
