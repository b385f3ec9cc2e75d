import type { Database } from '../../../src/store/database.ts'
import { VirtualClock } from '../clock.ts'
import { runFleet } from '../fleet.ts'
import { Ledger } from '../ledger.ts'
import type { Scenario } from '../scenario.ts'
import { Workload } from '../workload.ts'
import { ExpectedState } from './expected-state.ts'
import { DatabaseLoad } from './database-load.ts'
import { SimNode } from './node.ts'
import { SimServer } from './server.ts'

export interface PolarRun {
  clock: VirtualClock
  ledger: Ledger
  workload: Workload
  expected: ExpectedState
  load: DatabaseLoad
  server: SimServer
  realMs: number
}

/** Real milliseconds. */
const PROGRESS_EVERY_MS = 10_000

/** Simulates every node and trainer of the scenario over the real dispatch on this database. */
export async function runPolar(
  scenario: Scenario,
  database: Database,
  onProgress?: (text: string) => void,
): Promise<PolarRun> {
  const begun = performance.now()
  const clock = new VirtualClock()
  const ledger = new Ledger(clock, scenario)
  const load = new DatabaseLoad()
  const expected = new ExpectedState(clock, scenario, ledger, () => workload)
  await using server = new SimServer({ scenario, clock, database, load, expected })
  const workload = new Workload(clock, scenario, {
    submit: (tasks) => void server.submit(tasks).catch(clock.fail),
    advancePolicy: (version) => void server.advancePolicy(version).catch(clock.fail),
  })
  const nodes = new Map<string, { node: SimNode; boot: number }>()
  runFleet(scenario, clock, {
    join(fleetNode) {
      const boot = (nodes.get(fleetNode.id)?.boot ?? 0) + 1
      const node = new SimNode(fleetNode, boot, { scenario, clock, server, expected, ledger })
      nodes.set(fleetNode.id, { node, boot })
      ledger.addSlots(scenario.widths.run)
      node.start()
    },
    lose({ id }) {
      nodes.get(id)?.node.kill()
      ledger.addSlots(-scenario.widths.run)
    },
  })
  await server.start()
  workload.start()
  const progress = setInterval(() => {
    const done = [...expected.tasks.values()].reduce((sum, { valid, failed }) => sum + valid + failed, 0)
    const operations = [...load.byOperation].map(
      ([name, { calls, ms }]) => `${name} ${calls}×${(ms / calls).toFixed(1)}`,
    )
    onProgress?.(
      `${(clock.elapsed / 1000).toFixed(0)} s: ${done} of ${expected.sessions.size} done; ${operations.join(', ')} ms`,
    )
  }, PROGRESS_EVERY_MS)
  try {
    await clock.run(() => workload.isOver)
  } finally {
    clearInterval(progress)
  }
  ledger.close()
  return { clock, ledger, workload, expected, load, server, realMs: performance.now() - begun }
}
