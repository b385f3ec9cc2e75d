/**
 * Unix milliseconds that never go back: the wall clock when this is created, and monotonic time from then on. For
 * timestamps whose differences and order matter.
 */
export function createSteadyClock(now: () => number, monotonic: () => number): () => number {
  const offset = now() - monotonic()
  return () => Math.round(offset + monotonic())
}
