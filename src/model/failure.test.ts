import { describe, expect, test } from 'vitest'
import { Boundary, boundaryOf, failureClasses, FailureCode, RolloutError, toFailure } from './failure.ts'

describe('failureClasses', () => {
  test('every code begins with a boundary and has a description', () => {
    for (const code of FailureCode.options) {
      expect(Boundary.options).toContain(boundaryOf(code))
      expect(failureClasses[code].meaning).toMatch(/^[A-Z].*\.$/)
    }
  })

  test('no internal failure is attributed to the policy', () => {
    for (const code of FailureCode.options) {
      if (['upstream', 'runtime', 'evaluator', 'store', 'internal'].includes(boundaryOf(code))) {
        expect(failureClasses[code].blame, code).not.toBe('policy')
      }
    }
  })
})

describe('RolloutError', () => {
  test('has code, boundary, blame, cause and HTTP status', () => {
    const cause = new Error('socket')
    const error = new RolloutError('upstream.reset', 'gone', { cause })
    expect(error).toMatchObject({
      code: 'upstream.reset',
      boundary: 'upstream',
      blame: 'infrastructure',
      retryable: true,
      cause,
    })
    expect(error.failure).toEqual({ code: 'upstream.reset', message: 'gone', status: 502 })
  })

  test('toFailure() keeps a RolloutError and reports any other error as a bug', () => {
    expect(toFailure(new RolloutError('request.malformed', 'x')).code).toBe('request.malformed')
    expect(toFailure(new TypeError('x is not a function'))).toMatchObject({ code: 'internal.bug', status: 500 })
    expect(toFailure('thrown text').message).toBe('thrown text')
  })
})
