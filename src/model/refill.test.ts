import fc from 'fast-check'
import { expect, test } from 'vitest'
import { failureClasses, RolloutError, type FailureCode } from './failure.ts'
import { isValid, judgeEnding, type SessionEnding } from './refill.ts'

const codes = Object.keys(failureClasses) as FailureCode[]
const endings: fc.Arbitrary<SessionEnding> = fc.record(
  {
    status: fc.constantFrom('COMPLETED', 'TIMEOUT', 'ERROR', 'CANCELLED'),
    failure: fc.constantFrom(...codes).map((code) => new RolloutError(code, 'It failed.').failure),
  },
  { requiredKeys: ['status'] },
)
const budgets = fc.record({ refillsLeft: fc.integer({ min: -2, max: 5 }), mayChangeMachine: fc.boolean() })

test('judgeEnding() refills only failures of infrastructure, and only within the budget', () => {
  fc.assert(
    fc.property(endings, budgets, ({ status, failure }, budget) => {
      const verdict = judgeEnding({ status, failure }, budget)
      const { blame, retryable } = failure === undefined ? { blame: 'policy' } : failureClasses[failure.code]
      const isRefilled =
        blame === 'infrastructure' && budget.refillsLeft > 0 && (retryable === true || budget.mayChangeMachine)
      expect(verdict === 'refill').toBe(isRefilled)
    }),
  )
})

test('isValid() does not depend on the budget', () => {
  fc.assert(
    fc.property(endings, budgets, (ending, budget) => {
      expect(judgeEnding(ending, budget) === 'valid').toBe(isValid(ending))
    }),
  )
})

test.each<[SessionEnding['status'], FailureCode | undefined, boolean]>([
  ['COMPLETED', undefined, true],
  ['TIMEOUT', undefined, true],
  ['ERROR', undefined, false],
  ['CANCELLED', undefined, false],
  ['TIMEOUT', 'session.agent-timeout', true],
  ['ERROR', 'harness.exit-nonzero', true],
  ['ERROR', 'config.invalid', false],
  ['ERROR', 'runtime.gone', false],
  ['CANCELLED', 'session.cancelled', false],
])('isValid(): status %s with failure %s is %s', (status, code, valid) => {
  const failure = code === undefined ? undefined : new RolloutError(code, 'It failed.').failure
  expect(isValid({ status, failure })).toBe(valid)
})
