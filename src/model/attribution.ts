import { boundaryOf, failureClasses, type Boundary, type FailureCode } from './failure.ts'

/** Step of a session in which a failure occurred. */
export type FailurePhase =
  /** The sandbox was being prepared; the harness had not started. */
  | 'prepare'
  /** The harness ran. */
  | 'run'
  /** The engine answered the last model call of the harness with an error. */
  | 'call'
  /** Training data was built from the recorded calls. */
  | 'build'
  /** Files were copied out of the agent's sandbox. */
  | 'collect'
  /** A sandbox without any file of the agent was started for the evaluator. */
  | 'start-grader'
  /** The evaluator read the agent's files, or ran the agent's code. */
  | 'grade'

/** Facts about a failure besides its code. */
export interface FailureEvidence {
  phase: FailurePhase
  /** Number of model calls with an answer. Without an answer, the policy cannot have caused the failure. */
  answers: number
  /** Result of the same step on input that the agent could not change; absent: no control was run. */
  control?: 'passed' | 'failed'
}

/** Failures that the agent cannot cause in any phase. */
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
 * Attributes a failure. `infrastructure`: no reward, and a refill may follow. `policy`: the session is graded. A failure that
 * the agent can cause is attributed to the policy: otherwise an agent could avoid grading. If both can cause it, a control
 * decides: the same step on input that the agent could not change.
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
      // Only calls of the agent make a record large. A damaged record or a builder that throws is infrastructure.
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
