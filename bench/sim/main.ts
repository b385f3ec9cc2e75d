/** `node bench/sim/main.ts --help`: a cluster in virtual time, over the real dispatch. */
import type { BenchOptions } from '../run.ts'
import { HELP, readFlags } from './flags.ts'
import { printResults, type Results } from './report.ts'
import { simulate } from './simulate.ts'

/** A simulation of a hundred thousand sessions is faster when results share transactions and nodes renew less often. */
const LARGE = ['--gather-ms', '1000', '--lease-s', '180', '--expire-s', '30']
const SMALL = ['--nodes', '200', '--sessions', '12000', '--gather-ms', '500', '--expire-s', '10']

/** Simulates a small cluster; with `--long` the cluster of the targets. */
export async function benchSim({ long }: BenchOptions): Promise<Results> {
  return main(long ? LARGE : SMALL)
}

async function main(args: readonly string[]): Promise<Results> {
  const options = readFlags(args)
  if (options === undefined) {
    console.log(HELP)
    process.exit(0)
  }
  const results = await simulate(options, (text) => console.error(text))
  if (options.json) console.log(JSON.stringify(results))
  else printResults(options.scenario, results)
  const { problems } = results.polar
  for (const problem of problems) console.error(problem)
  if (problems.length > 0) throw new Error(`the tables differ from the expected state: ${problems.length} problems`)
  return results
}

if (import.meta.main) {
  try {
    await main(process.argv.slice(2))
  } catch (error) {
    console.error(error instanceof Error ? error.message : String(error))
    process.exitCode = 1
  }
}
