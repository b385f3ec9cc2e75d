import { createRandom, exponential } from './random.ts'
import type { Scenario } from './scenario.ts'
import type { VirtualClock } from './clock.ts'

export interface FleetNode {
  id: string
  labels: readonly string[]
}

export function listNodes({ nodes, labels }: Scenario): FleetNode[] {
  return Array.from({ length: nodes }, (_, i) => ({
    id: `node-${String(i).padStart(4, '0')}`,
    labels: Object.entries(labels).flatMap(([label, share]) => (i < Math.round(share * nodes) ? [label] : [])),
  }))
}

/** Calls back when a node starts and when it is lost, at the same times for every scheduler. */
export function runFleet(
  scenario: Scenario,
  clock: VirtualClock,
  { join, lose }: { join(node: FleetNode, index: number): void; lose(node: FleetNode, index: number): void },
): void {
  const { seed, nodeLifeMs, nodeAwayMs, joinWithinMs, massLoss } = scenario
  for (const [index, node] of listNodes(scenario).entries()) {
    const random = createRandom(seed, node.id)
    let isThere = false
    let stopLoss = (): void => undefined
    const come = (): void => {
      isThere = true
      join(node, index)
      if (Number.isFinite(nodeLifeMs)) stopLoss = clock.after(exponential(nodeLifeMs, random), go)
    }
    const go = (): void => {
      if (!isThere) return
      isThere = false
      stopLoss()
      lose(node, index)
      clock.after(exponential(nodeAwayMs, random), come)
    }
    clock.after(random() * joinWithinMs, come)
    if (massLoss !== undefined && random() < massLoss.share) clock.after(massLoss.atMs, go)
  }
}
