import { boundaryOf, failureClasses, type Boundary, type FailureCode } from './failure.ts'

/** What a session was doing when a failure occurred. */
export type FailurePhase =
  /** The sandbox was made ready; the agent had not started. */
  | 'prepare'
  /** The agent ran. */
  | 'run'
  /** The engine answered the last model call of the agent with an error. */
  | 'call'
  /** Training data was built from the recorded calls. */
  | 'build'
  /** Files were copied out of the agent's sandbox. */
  | 'collect'
  /** A sandbox without any file of the agent was started for the evaluator. */
  | 'start-grader'
  /** The evaluator read the agent's files, or ran the agent's code. */
  | 'grade'

/** What is known about a failure besides its code. */
export interface FailureEvidence {
  phase: FailurePhase
  /** Model calls with an answer. Without one the policy sampled nothing, so it caused nothing. */
  answers: number
  /** How the same step ended on input that the agent could not touch; absent: no control was run. */
  control?: 'passed' | 'failed'
}

/** Failures that no input of an agent can cause, in any phase. */
const BOUNDARIES_OUT_OF_REACH: ReadonlySet<Boundary> = new Set(['config', 'store', 'server'])
const CODES_OUT_OF_REACH: ReadonlySet<FailureCode> = new Set<FailureCode>([
  'upstream.unreachable',
  'upstream.rate-limited',
  'upstream.overloaded',
  'upstream.timeout',
  'runtime.unavailable',
  'runtime.unsupported',
  'runtime.prepare-failed',
  'runtime.image-missing',
  'harness.install-failed',
  'harness.damaged',
  'evaluator.tests-not-reported',
  'session.cancelled',
  'session.init-timeout',
  'session.node-lost',
])

/**
 * Decides who caused a failure. `infrastructure`: no reward, and another session may be made. `policy`: the session is
 * graded. A failure belongs to the policy when input of the agent can cause it: otherwise an agent could choose sessions
 * that are not graded. Where both can cause it, a control decides: the same step on input that the agent could not touch.
 */
export function attribute(code: FailureCode, evidence: FailureEvidence): 'policy' | 'infrastructure' {
  const { phase, answers, control } = evidence
  if (CODES_OUT_OF_REACH.has(code) || BOUNDARIES_OUT_OF_REACH.has(boundaryOf(code))) return 'infrastructure'
  switch (phase) {
    case 'prepare':
    case 'start-grader':
      return 'infrastructure'
    case 'run':
      return answers > 0 ? 'policy' : 'infrastructure'
    case 'call':
      if (answers === 0) return 'infrastructure'
      return isByInfrastructure(code) && control !== 'passed' ? 'infrastructure' : 'policy'
    case 'build':
      // Only calls of the agent make a record large; a record that is damaged or a builder that throws is ours.
      return failureClasses[code].blame === 'policy' ? 'policy' : 'infrastructure'
    case 'collect':
    case 'grade':
      return control === 'passed' || failureClasses[code].blame === 'policy' ? 'policy' : 'infrastructure'
  }
}

/** Whether a control can change the attribution of a failure. A control costs a sandbox or a model call. */
export function needsControl(code: FailureCode, evidence: Omit<FailureEvidence, 'control'>): boolean {
  return (
    attribute(code, { ...evidence, control: 'passed' }) === 'policy' &&
    attribute(code, { ...evidence, control: 'failed' }) === 'infrastructure'
  )
}

function isByInfrastructure(code: FailureCode): boolean {
  return failureClasses[code].blame === 'infrastructure'
}
