import type { StageWidths } from '../../src/node/session/stages.ts'
import type { Durations } from './random.ts'

/** One trainer that uses the server. */
export interface TrainerSpec {
  name: string
  /** `sync`: submits the next batch when the previous one has ended and is trained. `async`: keeps a number of groups running. */
  kind: 'sync' | 'async'
  /** Tasks in a batch, or running. */
  groups: number
  /** Sessions of one task. */
  samples: number
  priority: number
  requires: readonly string[]
  /** Usable sessions that are enough for a group. */
  earlyStop?: number
  /** Versions of the policy that a task may be behind. Absent: no limit. */
  stalenessLimit?: number
  /** Duration of a training step between two batches. */
  trainMs: number
  /** Start of the trainer. */
  startMs: number
  /** Number of sessions that the trainer submits. */
  sessions: number
}

export interface Scenario {
  seed: number
  nodes: number
  widths: StageWidths
  /** Share of the nodes, from the first on, that has each label. */
  labels: Readonly<Record<string, number>>
  trainers: readonly TrainerSpec[]
  initMs: Durations
  runMs: Durations
  postrunMs: Durations
  /** Share of the variance of `runMs` that belongs to the task, not to the sample, 0 to 1. */
  taskShare: number
  agentTimeoutMs: number
  /** Share of attempts that fail because of the infrastructure, beside those lost with their node. */
  failureRate: number
  /** Share of ended sessions that can be trained. */
  usableRate: number
  /** Mean time to the loss of a node, and until it joins again. Infinity: no node is lost. */
  nodeLifeMs: number
  nodeAwayMs: number
  /** Nodes join within this time; 0 is the thundering herd. */
  joinWithinMs: number
  outage?: { atMs: number; forMs: number }
  /** Share of the nodes that is lost at one moment and joins again after about `nodeAwayMs`. */
  massLoss?: { atMs: number; share: number }
  leaseMs: number
  /** Round trip between a node and the server. */
  roundTripMs: number
  /** Results wait this long to share a transaction, so that a simulation needs fewer real transactions. */
  gatherMs: number
  /** Interval of the server's search for expired leases. */
  expireEveryMs: number
  /** Sessions that a node leases beyond its run slots. */
  ahead: number
  /** Whether a node reports how many of the requested sessions would only wait, so that nodes with idle slots are served first. */
  tellsAhead: boolean
}
