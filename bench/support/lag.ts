import { monitorEventLoopDelay } from 'node:perf_hooks'

const RESOLUTION_MS = 5

export interface Lag {
  p50Ms: number
  p99Ms: number
  maxMs: number
}

/** Measures the delay of timers in this process since the last `take`. */
export function createLagMeter(): { take(): Lag } {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS })
  histogram.enable()
  // Node records the time between two ticks of a timer, so an idle loop reads as the timer's own interval.
  const toMs = (nanoseconds: number): number => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS)
  return {
    take() {
      const lag = {
        p50Ms: toMs(histogram.percentile(50)),
        p99Ms: toMs(histogram.percentile(99)),
        maxMs: toMs(histogram.max),
      }
      histogram.reset()
      return lag
    },
  }
}
