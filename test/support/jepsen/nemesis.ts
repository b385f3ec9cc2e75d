import { setTimeout as sleep } from 'node:timers/promises'
import type { Cluster } from './cluster.ts'
import { monotonic } from './history.ts'
import { runs } from '../runs.ts'
import type { Chance } from './random.ts'
import { STORMY } from './tap.ts'

/** Injects a fault into a cluster. The fault has ended when the promise resolves. */
type Fault = (cluster: Cluster, chance: Chance) => Promise<void>

/** Maximum duration of a short outage, during which no lease expires. */
const SHORT_MS = 1500
const HOUR_MS = 3_600_000

const kills: Readonly<Record<string, Fault>> = {
  async server(cluster, chance) {
    await cluster.server.kill()
    await sleep(chance.between(0, SHORT_MS))
    cluster.bringUp(cluster.server)
  },
  async node(cluster, chance) {
    const { program } = chance.pick(cluster.nodes)
    await program.kill()
    await sleep(chance.between(0, 2 * SHORT_MS))
    cluster.bringUp(program)
  },
  async 'server and node'(cluster, chance) {
    const { program } = chance.pick(cluster.nodes)
    await Promise.all([cluster.server.kill(), program.kill()])
    await sleep(chance.between(0, SHORT_MS))
    cluster.bringUp(program)
    cluster.bringUp(cluster.server)
  },
  async postgres(cluster, chance) {
    await cluster.postgres?.crash({ signal: 'SIGKILL', downMs: chance.between(0, SHORT_MS) })
  },
  async 'postgres and server'(cluster, chance) {
    await Promise.all([kills['postgres']!(cluster, chance), kills['server']!(cluster, chance)])
  },
}

const troubles: Readonly<Record<string, Fault>> = {
  async 'cut for a moment'(cluster, chance) {
    const { cut, heal } = chance.pick(cluster.nodes)
    cut()
    await sleep(chance.between(100, SHORT_MS))
    heal()
  },
  async 'cut for longer than a lease'(cluster, chance) {
    const { cut, heal } = chance.pick(cluster.nodes)
    cut()
    await sleep(cluster.leaseMs + chance.between(500, 2000))
    heal()
  },
  async 'half-open'(cluster, chance) {
    const { tap } = chance.pick(cluster.nodes)
    tap.cut()
    await sleep(chance.between(500, cluster.leaseMs))
    tap.heal()
  },
  async storm(cluster, chance) {
    const some = cluster.nodes.filter(() => chance.happens(0.7))
    for (const { tap } of some) tap.weather = STORMY
    await sleep(chance.between(1500, 3000))
    for (const { tap } of some) tap.heal()
  },
  async 'halt node'(cluster, chance) {
    const { program } = chance.pick(cluster.nodes)
    program.halt()
    await sleep(cluster.leaseMs + chance.between(500, 2000))
    program.goOn()
  },
  async 'halt server'(cluster, chance) {
    cluster.server.halt()
    await sleep(cluster.leaseMs + chance.between(0, 1500))
    cluster.server.goOn()
  },
  async 'clock of the server'(cluster, chance) {
    cluster.setClock('server', chance.pick([-HOUR_MS, HOUR_MS]))
    await sleep(chance.between(1000, 3000))
    cluster.setClock('server', 0)
  },
  async 'clock of a node'(cluster, chance) {
    const { nodeId } = chance.pick(cluster.nodes)
    cluster.setClock(nodeId, chance.pick([-HOUR_MS, HOUR_MS]))
    await sleep(chance.between(1000, 3000))
    cluster.setClock(nodeId, 0)
  },
}

/** Number of each kill, in random order. Fixed numbers guarantee that every run contains every kind. */
const KILLS_EMBEDDED = { server: 4, node: 3, 'server and node': 1 }
const KILLS_POSTGRES = { server: 2, node: 2, 'server and node': 1, postgres: 2, 'postgres and server': 1 }
const TROUBLES = Object.fromEntries(Object.keys(troubles).map((name) => [name, 1]))
const TIMES = runs(1)
export const ROUNDS = 8 * TIMES

/** Every round kills a process and injects another fault. All programs run again when the promise resolves. */
export async function injectFaults(cluster: Cluster, chance: Chance, onRound: (round: number) => void): Promise<void> {
  const deaths = shuffle(repeatNames(cluster.postgres === undefined ? KILLS_EMBEDDED : KILLS_POSTGRES), chance)
  const beside = shuffle(repeatNames(TROUBLES), chance)
  for (let round = 0; round < ROUNDS; round += 1) {
    onRound(round)
    const [death, trouble] = [deaths[round]!, beside[round]!]
    cluster.log.add({ kind: 'fault', at: monotonic(), what: `round ${round + 1}: kill ${death}; ${trouble}` })
    await Promise.all([
      troubles[trouble]!(cluster, chance.fork()),
      later(chance.between(0, 1500), () => kills[death]!(cluster, chance.fork())),
    ])
    await cluster.untilUp(cluster.server)
    // The next round may begin while a slow node still starts.
    await Promise.race([cluster.allUp(), sleep(chance.between(300, 1500))])
  }
  await cluster.allUp()
}

async function later(ms: number, act: () => Promise<void>): Promise<void> {
  await sleep(ms)
  await act()
}

function repeatNames(counts: Readonly<Record<string, number>>): string[] {
  return Object.entries(counts).flatMap(([name, count]) => Array.from({ length: count * TIMES }, () => name))
}

function shuffle<T>(items: readonly T[], chance: Chance): T[] {
  return items
    .map((item) => ({ item, order: chance.next() }))
    .sort((a, b) => a.order - b.order)
    .map(({ item }) => item)
}
