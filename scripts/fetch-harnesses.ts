import { harnesses } from '../src/node/harness/presets/index.ts'
import { runCommand } from './steps.ts'

/** Installation mostly waits for the network. */
const AT_A_TIME = 4

/** Installs every harness CLI below .polar. Returns why a harness could not be installed, by name. */
export async function fetchHarnesses(prefix: readonly string[]): Promise<Record<string, string>> {
  const problems: Record<string, string> = {}
  // Python packages take minutes, npm packages seconds.
  const waiting = harnesses.toSorted((one, other) => minutesOf(other.package) - minutesOf(one.package))
  const work = async () => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const command = [...prefix, 'node', 'src/cli/main.ts', 'harness', 'install', next.name]
      const { exitCode, output } = await runCommand(command)
      if (exitCode !== 0) problems[next.name] = output.trim().split('\n').at(-1) ?? `exit code ${exitCode}`
    }
  }
  await Promise.all(Array.from({ length: AT_A_TIME }, work))
  return problems
}

function minutesOf({ registry }: { registry: string }): number {
  return registry === 'pypi' ? 3 : 1
}
