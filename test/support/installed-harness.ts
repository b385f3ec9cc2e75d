import type { PackagedHarness } from '../../src/node/harness/presets/harness.ts'

/** Why a test of a harness that was not found is skipped. `npm test` passes the reason why it could not install the harness. */
export function whyNoHarness({ name, package: { version } }: Pick<PackagedHarness, 'name' | 'package'>): string {
  const problems = JSON.parse(process.env['POLAR_TEST_HARNESS_PROBLEMS'] ?? '{}') as Record<string, string>
  return `${name} ${version} is not installed: ${problems[name] ?? `npm run polar -- harness install ${name}`}`
}
