import { expect } from 'vitest'
import { failureClasses } from '../../../src/model/failure.ts'
import type { EndedSession } from './attack-range.ts'

/** Asserts that the session was graded: its ending is attributed to the policy, and its reward is finite. */
export function expectGraded({ outcome }: EndedSession): void {
  const blame = outcome.failure === undefined ? 'policy' : failureClasses[outcome.failure.code].blame
  expect(blame, outcome.failure?.message).toBe('policy')
  expect(outcome.grade?.outcome_reward, JSON.stringify(outcome.grade)).toSatisfy(Number.isFinite)
}

/** Asserts that the session was graded with reward 0. */
export function expectWorthNothing(session: EndedSession): void {
  expectGraded(session)
  expect(session.outcome.grade, JSON.stringify(session.outcome.grade)).toMatchObject({ outcome_reward: 0 })
}

/** Returns the results of the parts of a `weighted` evaluator by name. */
export function partsOf({ outcome }: EndedSession): Record<string, Record<string, unknown>> {
  return (outcome.grade?.metadata['parts'] ?? {}) as Record<string, Record<string, unknown>>
}
