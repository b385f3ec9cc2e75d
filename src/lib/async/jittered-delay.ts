/** How long to wait after so many failures in a row: doubling, of which a random half is spared, so that many do not come back at once. */
export function jitteredDelay(
  failures: number,
  { baseMs, maxMs }: { baseMs: number; maxMs: number },
  random: number,
): number {
  const full = Math.min(maxMs, baseMs * 2 ** (failures - 1))
  return full / 2 + (random * full) / 2
}
