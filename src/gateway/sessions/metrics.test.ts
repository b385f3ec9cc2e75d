import { expect, test } from 'vitest'
import { formatMetrics, Metrics } from './metrics.ts'

test('turns are counted by outcome, durations fall into cumulative buckets, and processes add up', () => {
  const metrics = new Metrics()
  metrics.countTurn({ startedAt: 0, firstTokenAt: 200, endedAt: 2000 })
  metrics.countTurn({ startedAt: 0, endedAt: 40, failure: { code: 'upstream.reset', message: '', status: 502 } })
  const text = formatMetrics([metrics.snapshot(), metrics.snapshot()], {
    polar_in_flight: 3,
    polar_paused: 0,
    polar_sessions: 1,
  })
  expect(text).toContain('polar_turns_total{outcome="answered",grade="none"} 2\n')
  expect(text).toContain('polar_turns_total{outcome="upstream.reset",grade="none"} 2\n')
  expect(text).toContain('polar_turn_seconds_bucket{le="0.05"} 2\n')
  expect(text).toContain('polar_turn_seconds_bucket{le="2.5"} 4\n')
  expect(text).toContain('polar_turn_seconds_bucket{le="+Inf"} 4\n')
  expect(text).toContain('polar_turn_seconds_count 4\n')
  expect(text).toContain('polar_first_token_seconds_count 2\n')
  expect(text).toContain('# TYPE polar_in_flight gauge\npolar_in_flight 3\n')
})
