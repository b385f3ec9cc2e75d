import type { StageWidths } from '../../src/node/session/stages.ts'
import type { Durations } from './random.ts'

/** One customer of the server. */
export interface TrainerSpec {
  name: string
  /** `sync`: the next batch when the one before is done and trained on. `async`: so many groups under way at any time. */
  kind: 'sync' | 'async'
  /** Tasks in a batch, or under way. */
  groups: number
  /** Of one task. */
  samples: number
  priority: number
  requires: readonly string[]
  /** Usable sessions that are enough for a group. */
  earlyStop?: number
  /** Versions of the policy that a task may be behind. Absent: it may be of any age. */
  stalenessLimit?: number
  /** A step of the trainer, between two batches. */
  trainMs: number
  /** When it begins. */
  startMs: number
  /** It submits no more when it has submitted so many sessions. */
  sessions: number
}

export interface Scenario {
  seed: number
  nodes: number
  widths: StageWidths
  /** A part of the nodes, from the first on, has each of these labels. */
  labels: Readonly<Record<string, number>>
  trainers: readonly TrainerSpec[]
  initMs: Durations
  runMs: Durations
  postrunMs: Durations
  /** How much of the spread of `runMs` is the task's and not the sample's, 0 to 1. */
  taskShare: number
  agentTimeoutMs: number
  /** Attempts that infrastructure spoils, beside those that die with their node. */
  failureRate: number
  /** Ends of the policy's own that can be trained on. */
  usableRate: number
  /** Mean time to the loss of a node, and until it is back. Infinity: none is lost. */
  nodeLifeMs: number
  nodeAwayMs: number
  /** Nodes join within this time; 0 is the thundering herd. */
  joinWithinMs: number
  outage?: { atMs: number; forMs: number }
  /** A part of the nodes that is lost at one moment, and comes back after `nodeAwayMs`, each when it does. */
  massLoss?: { atMs: number; share: number }
  leaseMs: number
  /** There and back, between a node and the server. */
  roundTripMs: number
  /** Results wait so long for company, so that fewer transactions have to be made for real. */
  gatherMs: number
  /** How often the server looks for leases that ran out. */
  expireEveryMs: number
  /** How many a node takes beyond its places to run. */
  ahead: number
  /** Whether it says how many of those it asks for would only wait, so that nodes with idle places come first. */
  tellsAhead: boolean
}
