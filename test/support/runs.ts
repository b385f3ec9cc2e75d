/**
 * Returns the number of runs of a property or of another random test. Seeds are random, so that many short runs of the suite
 * find what one long run finds; `POLAR_TEST_RUNS=20 npm test` is such a long run.
 */
export function runs(count: number): number {
  const factor = Number(process.env['POLAR_TEST_RUNS'] ?? 1)
  if (!(factor > 0)) throw new Error('POLAR_TEST_RUNS must be a positive number')
  return Math.max(1, Math.round(count * factor))
}
