import { expect } from 'vitest'
import { failureClasses } from '../../../src/model/failure.ts'
import type { EndedSession } from './attack-range.ts'

/** The session was graded: how it ended is the doing of the policy, and there is a finite reward. */
export function expectGraded({ outcome }: EndedSession): void {
  const blame = outcome.failure === undefined ? 'policy' : failureClasses[outcome.failure.code].blame
  expect(blame, outcome.failure?.message).toBe('policy')
  expect(outcome.grade?.outcome_reward, JSON.stringify(outcome.grade)).toSatisfy(Number.isFinite)
}

/** The session was graded, and its reward is 0. */
export function expectWorthNothing(session: EndedSession): void {
  expectGraded(session)
  expect(session.outcome.grade, JSON.stringify(session.outcome.grade)).toMatchObject({ outcome_reward: 0 })
}

/** What the parts of a `weighted` evaluator said, by their names. */
export function partsOf({ outcome }: EndedSession): Record<string, Record<string, unknown>> {
  return (outcome.grade?.metadata['parts'] ?? {}) as Record<string, Record<string, unknown>>
}
