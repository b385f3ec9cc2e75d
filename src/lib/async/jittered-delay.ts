/** Exponential backoff after consecutive failures, with jitter of up to half the delay. `random` is from 0 to 1. */
export function jitteredDelay(
  failures: number,
  { baseMs, maxMs }: { baseMs: number; maxMs: number },
  random: number,
): number {
  const full = Math.min(maxMs, baseMs * 2 ** (failures - 1))
  return full / 2 + (random * full) / 2
}
