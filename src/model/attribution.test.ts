import { expect, test } from 'vitest'
import { attribute, needsControl, type FailurePhase } from './attribution.ts'
import { failureClasses, type FailureCode } from './failure.ts'

const ALL = Object.keys(failureClasses) as FailureCode[]
const PHASES: FailurePhase[] = ['prepare', 'run', 'call', 'build', 'collect', 'start-grader', 'grade']

test.each(['prepare', 'start-grader'] as const)(
  'every failure in the phase %s is attributed to the infrastructure',
  (phase) => {
    for (const code of ALL) {
      expect(attribute(code, { phase, answers: 3, control: 'passed' }), code).toBe('infrastructure')
      expect(needsControl(code, { phase, answers: 3 }), code).toBe(false)
    }
  },
)

test.each(['run', 'call'] as const)(
  'every failure in the phase %s is attributed to the infrastructure while the model has not answered',
  (phase) => {
    for (const code of ALL)
      expect(attribute(code, { phase, answers: 0, control: 'passed' }), code).toBe('infrastructure')
  },
)

test.each<FailureCode>(['harness.not-found', 'harness.bad-setup', 'runtime.gone', 'harness.exit-nonzero'])(
  '%s belongs to the policy once the model has answered: an agent can cause it',
  (code) => {
    expect(attribute(code, { phase: 'run', answers: 1 })).toBe('policy')
  },
)

test.each<[FailureCode, 'passed' | 'failed' | undefined, string]>([
  ['upstream.refused', undefined, 'policy'],
  ['request.malformed', undefined, 'policy'],
  ['upstream.failed', 'passed', 'policy'],
  ['upstream.failed', 'failed', 'infrastructure'],
  ['upstream.failed', undefined, 'infrastructure'],
  ['upstream.reset', 'passed', 'policy'],
  ['upstream.reset', 'failed', 'infrastructure'],
  ['upstream.unreachable', 'passed', 'infrastructure'],
  ['upstream.timeout', 'passed', 'infrastructure'],
  ['upstream.rate-limited', 'passed', 'infrastructure'],
])('a last call that ended with %s, control %s: %s', (code, control, expected) => {
  const evidence = { phase: 'call' as const, answers: 2, ...(control === undefined ? {} : { control }) }
  expect(attribute(code, evidence)).toBe(expected)
})

test.each<FailureCode>([
  'runtime.gone',
  'runtime.copy-failed',
  'runtime.out-of-disk',
  'runtime.start-failed',
  'evaluator.crashed',
  'evaluator.timeout',
  'internal.bug',
])('%s while collecting or grading: the control decides', (code) => {
  for (const phase of ['collect', 'grade'] as const) {
    expect(needsControl(code, { phase, answers: 2 })).toBe(true)
    expect(attribute(code, { phase, answers: 2, control: 'passed' })).toBe('policy')
    expect(attribute(code, { phase, answers: 2, control: 'failed' })).toBe('infrastructure')
    expect(attribute(code, { phase, answers: 2 })).toBe('infrastructure')
  }
})

test('a record that is too large to build is attributed to the policy; other build failures are not', () => {
  const policys = ALL.filter((code) => failureClasses[code].blame === 'policy')
  expect(policys).toContain('session.too-large')
  for (const code of ALL) {
    const expected = policys.includes(code) ? 'policy' : 'infrastructure'
    expect(attribute(code, { phase: 'build', answers: 0 }), code).toBe(expected)
    expect(needsControl(code, { phase: 'build', answers: 0 }), code).toBe(false)
  }
})

test('files of the agent that cannot be copied require no control run', () => {
  for (const code of ['workspace.file-missing', 'workspace.too-large', 'workspace.unsafe-file'] as const) {
    expect(attribute(code, { phase: 'collect', answers: 1 })).toBe('policy')
    expect(needsControl(code, { phase: 'collect', answers: 1 })).toBe(false)
  }
})

test('failures of configuration, storage, images and cancellation are never attributed to the policy', () => {
  const codes: FailureCode[] = [
    'config.invalid',
    'runtime.image-missing',
    'runtime.unavailable',
    'store.unavailable',
    'store.corrupt',
    'server.unreachable',
    'session.cancelled',
    'session.node-lost',
  ]
  for (const code of codes) {
    for (const phase of PHASES) {
      expect(attribute(code, { phase, answers: 9, control: 'passed' }), `${code} in ${phase}`).toBe('infrastructure')
    }
  }
})
