import { failureClasses, type Failure } from './failure.ts'
import type { SessionStatus } from './session.ts'

/** How a task counts a session that ended. `refill`: the session does not count; a new session replaces it. */
export type Verdict = 'valid' | 'failed' | 'refill'

export interface SessionEnding {
  status: SessionStatus
  failure?: Failure
}

export interface RefillBudget {
  refillsLeft: number
  /** Whether a refill may run on another machine, where a failure that is not retryable on this machine may not occur. */
  mayChangeMachine: boolean
}

/**
 * Decides whether a session counts, failed, or is refilled; `polar run` and the server both use this rule. Failures that
 * the policy caused count. Failures that the task caused would occur again. Failures of infrastructure are refilled.
 */
export function judgeEnding({ status, failure }: SessionEnding, budget: RefillBudget): Verdict {
  if (failure === undefined) return status === 'COMPLETED' || status === 'TIMEOUT' ? 'valid' : 'failed'
  const { blame, retryable } = failureClasses[failure.code]
  switch (blame) {
    case 'policy':
      return 'valid'
    case 'caller':
      return 'failed'
    case 'infrastructure':
      return budget.refillsLeft > 0 && (retryable || budget.mayChangeMachine) ? 'refill' : 'failed'
  }
}

/** Whether a session counts towards `num_samples`. */
export function isValid(ending: SessionEnding): boolean {
  return judgeEnding(ending, { refillsLeft: 0, mayChangeMachine: false }) === 'valid'
}
