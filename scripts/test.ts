// All tests: `npm test`. The last line has the counts. Missing programs are fetched below .polar.
import { fetchHarnesses } from './fetch-harnesses.ts'
import { openProjectPrefix } from './open-project.ts'
import { prepareApptainer } from './install-apptainer.ts'
import { hasFailed, printFailures, renderCounts, runSteps, staticSteps, testStep, type StepResult } from './steps.ts'
import { prepareTestSystem } from './test-system.ts'

/** Fetching mostly waits for the network, so it runs beside the unit tests. */
const [fetched, results] = await Promise.all([fetchPrograms(), runFirstSteps()])
printFailures(results)
const e2e = testStep('e2e tests', 'e2e', {
  stream: true,
  prefix: [...openProjectPrefix(), ...fetched.prefix],
  env: { POLAR_TEST_HARNESS_PROBLEMS: JSON.stringify(fetched.problems) },
})
results.push(...(await runSteps([e2e], 1)))

const summary = {
  passed: results.reduce((sum, result) => sum + result.summary.passed, 0),
  failed: results.reduce((sum, result) => sum + result.summary.failed, 0),
  skipped: results.flatMap((result) => result.summary.skipped),
}
console.log()
for (const { test, reason } of summary.skipped) console.log(`skipped: ${test} (${reason})`)
for (const { name } of results.filter(hasFailed)) console.log(`failed: ${name}`)
console.log(renderCounts(summary))
process.exitCode = summary.failed > 0 ? 1 : 0

async function fetchPrograms(): Promise<{ prefix: string[]; problems: Record<string, string> }> {
  const [{ prefix, remark }, apptainerRemark] = await Promise.all([prepareTestSystem(), prepareApptainer()])
  for (const each of [remark, apptainerRemark]) if (each !== undefined) console.log(each)
  const problems = await fetchHarnesses(prefix)
  for (const [name, problem] of Object.entries(problems)) console.log(`${name} cannot be installed: ${problem}`)
  return { prefix, problems }
}

async function runFirstSteps(): Promise<StepResult[]> {
  return runSteps([testStep('unit tests', 'unit', { stream: true }), ...staticSteps], 2)
}
