import { attribute, type FailureEvidence } from '../../model/attribution.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'

/** How the harness process ended. */
export interface AgentRun {
  exitCode: number | null
  isOutOfMemory: boolean
  /** The meaning of the exit code for this harness. */
  end: 'finished' | 'gave-up' | 'limit-reached'
  /** The failure that this ending would be if the agent did not cause it: harness not started, sandbox ended. */
  suspicion?: Failure
  /** The end of the harness's output, for people. */
  message?: string
}

export interface BuildOutcome<Built> {
  built: Built
  /** Number of calls that the model answered, in whole or in part. */
  answers: number
  /** Why the last call got no answer: this failure ended the harness, whatever its exit code. Absent if it got one. */
  lastFailure?: Failure
  /** Whether the engine answers other requests while it still fails for the last call; absent: no control was run. */
  engineControl?: 'passed' | 'failed'
  /** Why the record of the session is incomplete. */
  incomplete?: Failure
}

/** How the harness ended. `failure` is absent if the harness finished or reached a limit of its own. */
export interface HarnessEnding extends Pick<AgentRun, 'suspicion'> {
  failure?: Failure
  ending?: AgentEnding
}

/** Runs the harness until it ends or its time limit aborts `signal`. Reaching the time limit is an ending, not an error. */
export async function runHarness(
  steps: { run(signal: AbortSignal): Promise<AgentRun> },
  signal: AbortSignal,
): Promise<HarnessEnding> {
  const timeout = (): Failure | undefined => {
    const { reason } = signal as { reason: unknown }
    return reason instanceof RolloutError && reason.code === 'session.agent-timeout' ? reason.failure : undefined
  }
  try {
    const run = await steps.run(signal)
    const failure = timeout()
    return failure ? { failure, ending: { kind: 'timeout', exitCode: run.exitCode } } : toEnding(run)
  } catch (error) {
    const failure = timeout()
    if (failure === undefined) throw error
    return { failure, ending: { kind: 'timeout', exitCode: null } }
  }
}

function toEnding({ exitCode, isOutOfMemory, end, message, suspicion }: AgentRun): HarnessEnding {
  switch (end) {
    case 'finished':
      return { ending: { kind: 'completed', exitCode }, suspicion }
    case 'limit-reached':
      return { ending: { kind: 'truncated', exitCode }, suspicion }
    case 'gave-up': {
      const code = isOutOfMemory ? 'harness.out-of-memory' : 'harness.exit-nonzero'
      const how = exitCode === null ? 'was ended by a signal' : `ended with exit code ${exitCode}`
      const { failure } = new RolloutError(code, `The harness ${how}${message ? `: ${message}` : ''}`)
      return { failure, ending: { kind: 'failed', exitCode }, suspicion }
    }
  }
}

/** Corrects an ending by the captured calls. An ending that infrastructure caused has a failure and no `ending`. */
export function attributeEnding(
  { failure, ending, suspicion }: HarnessEnding,
  found: Omit<BuildOutcome<unknown>, 'built'>,
): Omit<HarnessEnding, 'suspicion'> {
  if (ending === undefined) return { failure }
  const cause = findInfrastructureCause(ending, { failure, suspicion }, found)
  if (cause !== undefined) return { failure: cause }
  const isContextFull = found.lastFailure?.code === 'request.context-overflow' && ending.kind !== 'timeout'
  return isContextFull ? { ending: { ...ending, kind: 'truncated' } } : { failure, ending }
}

/** Undefined if the policy caused the ending. */
function findInfrastructureCause(
  { kind }: AgentEnding,
  { failure, suspicion }: HarnessEnding,
  { answers, lastFailure, engineControl: control, incomplete }: Omit<BuildOutcome<unknown>, 'built'>,
): Failure | undefined {
  if (incomplete !== undefined) return incomplete
  const isInfrastructure = (failed: Failure, evidence: Omit<FailureEvidence, 'answers'>): boolean =>
    attribute(failed.code, { ...evidence, answers }) === 'infrastructure'
  const blame = lastFailure && failureClasses[lastFailure.code].blame
  if (lastFailure && blame === 'infrastructure' && isInfrastructure(lastFailure, { phase: 'call', control })) {
    return lastFailure
  }
  if (suspicion !== undefined && isInfrastructure(suspicion, { phase: 'run' })) return suspicion
  if (answers > 0 || kind === 'completed') return undefined
  // An engine that refuses every request is misconfigured; an engine that refuses after answers got a bad request.
  if (blame === 'caller') return lastFailure
  const last = lastFailure && `Its last call failed, ${lastFailure.code}: ${lastFailure.message}`
  const how = last ?? failure?.message ?? `The agent ended (${kind})`
  return new RolloutError('harness.no-answer', `The model had answered nothing yet. ${how}`).failure
}
