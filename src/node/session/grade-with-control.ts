import { attribute, needsControl, type FailureEvidence } from '../../model/attribution.ts'
import { toFailure } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import type { SessionSteps } from './run-session.ts'
import type { StepTimer } from './time-limit.ts'

type GradingSteps<Built> = Pick<SessionSteps<Built, unknown>, 'grade' | 'gradingPhase' | 'control' | 'refuse'>

/**
 * Grades a session, and decides who caused a failed grading. Rejects with the failure if infrastructure caused it. If a
 * control shows that the agent's files may have caused it, the files are graded again: a failure of infrastructure seldom
 * occurs twice.
 */
export async function gradeWithControl<Built>(
  steps: GradingSteps<Built>,
  { built, ending, answers }: { built: Built; ending: AgentEnding; answers: number },
  timer: StepTimer,
  cancel: AbortSignal,
): Promise<EvalResult | undefined> {
  let isOverTime = false
  const grade = (): Promise<EvalResult | undefined> =>
    timer.limit('evaluate', (signal) => {
      signal.addEventListener('abort', () => (isOverTime = true))
      return steps.grade(built, ending, signal)
    })
  let control: FailureEvidence['control']
  for (let isFirst = true; ; isFirst = false) {
    try {
      return await grade()
    } catch (error) {
      cancel.throwIfAborted()
      const failure = toFailure(error)
      const evidence = { phase: steps.gradingPhase(), answers }
      if (isFirst && needsControl(failure.code, evidence)) {
        control = await timer
          .limit('evaluate', (signal) => steps.control(failure, signal))
          .then(
            () => 'passed' as const,
            () => 'failed' as const,
          )
        cancel.throwIfAborted()
      }
      if (attribute(failure.code, { ...evidence, control }) === 'infrastructure') throw error
      // A second grading of files that reached the time limit would reach it again.
      if (isOverTime || !isFirst) return steps.refuse(failure, ending)
      control = 'passed'
    }
  }
}
