// All checks that need no further programs: `npm run check`.
import { hasFailed, printFailures, runSteps, staticSteps, testStep } from './steps.ts'

const results = await runSteps(staticSteps, 2)
results.push(...(await runSteps([testStep('unit tests', 'unit', { stream: false })], 1)))
printFailures(results)
process.exitCode = results.some(hasFailed) ? 1 : 0
