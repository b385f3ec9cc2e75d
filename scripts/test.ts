// Everything there is to test: `npm test`. The last line is the count.
import { installApptainerInCi } from './install-apptainer.ts'
import {
  commandStep,
  hasFailed,
  printFailures,
  renderCounts,
  runSteps,
  staticSteps,
  testStep,
  type StepResult,
} from './steps.ts'
import { installSystemPackages } from './system-packages.ts'

installSystemPackages()
installApptainerInCi()

/** 1.6 GB, so nobody has to have them; what needs one that is not here says so and skips. In CI nothing may skip. */
const harnesses =
  process.env['CI'] === 'true' ? [commandStep('harnesses', 'node', 'src/cli/main.ts', 'harness', 'install', 'all')] : []

const results: StepResult[] = []
for (const { steps, width } of [
  { steps: staticSteps, width: 2 },
  // Fetching harnesses is mostly waiting.
  { steps: [testStep('unit tests', 'unit', { stream: true }), ...harnesses], width: 2 },
  {
    steps: [testStep('e2e tests', 'e2e', { stream: true }), testStep('wire tests', 'wire', { stream: true })],
    width: 2,
  },
]) {
  const ended = await runSteps(steps, width)
  printFailures(ended)
  results.push(...ended)
}

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
