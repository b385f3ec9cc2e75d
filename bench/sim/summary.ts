import { percentile, sum } from '../support/stats.ts'
import type { Ledger } from './ledger.ts'
import type { Workload } from './workload.ts'

/** A scheduler's run in numbers. Times in virtual seconds, shares from 0 to 1. */
export interface Summary {
  sessions: number
  tasks: number
  makespanS: number
  /** Share of used run slots: while there was work for all RUN and READY slots, and of the slots with work. */
  saturatedUse: number
  saturatedS: number
  use: number
  idleSlotHours: number
  /** Slots that were idle while as many sessions waited on other nodes. */
  misplacedHours: number
  queueAgeS: { p50: number; p95: number; max: number }
  rescueS: { p50: number; p95: number }
  refills: number
  valid: number
  failed: number
  cancelled: number
  usefulHours: number
  wastedHours: Record<string, number>
  sparedHours: number
  /** Of leased time by trainer, among trainers of equal priority, while each had waiting sessions. */
  trainerJain: number
  trainerMaxToMin: number
  /** Duration of a task divided by that of its longest session. */
  slowdown: { p50: number; p95: number; max: number; jain: number }
  batches: {
    count: number
    seconds: number
    /** Share of a batch's duration after nine tenths of its sessions had ended. */
    tailShare: number
    /** From a group's first session to its last. */
    groupSpreadS: { p50: number; p95: number }
  }
}

const HOUR_MS = 3_600_000

export function summarise(ledger: Ledger, { batches }: Workload): Summary {
  const { slotMs, ends } = ledger
  const slowdowns = ends.map(({ submittedMs, endedMs, longestMs }) => (endedMs - submittedMs) / Math.max(1, longestMs))
  const spreads = ends.map(({ firstMs, lastMs }) => (lastMs - firstMs) / 1000)
  const { shares } = ledger
  const seconds = (values: readonly number[], percent: number): number => percentile(values, percent) / 1000
  return {
    sessions: ledger.sessions,
    tasks: ends.length,
    makespanS: ledger.lastMs / 1000,
    saturatedUse: slotMs.saturatedBusy / slotMs.saturated,
    saturatedS: ledger.saturatedMs / 1000,
    use: slotMs.busy / slotMs.usable,
    idleSlotHours: slotMs.idle / HOUR_MS,
    misplacedHours: slotMs.misplaced / HOUR_MS,
    queueAgeS: {
      p50: seconds(ledger.queueAgesMs, 50),
      p95: seconds(ledger.queueAgesMs, 95),
      max: seconds(ledger.queueAgesMs, 100),
    },
    rescueS: { p50: seconds(ledger.rescuesMs, 50), p95: seconds(ledger.rescuesMs, 95) },
    refills: ledger.refills,
    valid: sum(ends.map(({ valid }) => valid)),
    failed: sum(ends.map(({ failed }) => failed)),
    cancelled: sum(ends.map(({ cancelled }) => cancelled)),
    usefulHours: sum(ledger.usefulMs.values()) / HOUR_MS,
    wastedHours: Object.fromEntries(Object.entries(ledger.wastedMs).map(([why, ms]) => [why, ms / HOUR_MS])),
    sparedHours: ledger.sparedMs / HOUR_MS,
    trainerJain: jain(shares),
    trainerMaxToMin: Math.max(...shares) / Math.min(...shares),
    slowdown: {
      p50: percentile(slowdowns, 50),
      p95: percentile(slowdowns, 95),
      max: percentile(slowdowns, 100),
      jain: jain(slowdowns),
    },
    batches: {
      count: batches.length,
      seconds: sum(batches.map(({ begunMs, endedMs }) => endedMs - begunMs)) / 1000 / batches.length,
      tailShare: sum(batches.map(tailOf)) / batches.length,
      groupSpreadS: { p50: percentile(spreads, 50), p95: percentile(spreads, 95) },
    },
  }
}

function tailOf({ begunMs, endedMs, endsMs }: Workload['batches'][number]): number {
  const most = percentile(endsMs, 90)
  return (endedMs - most) / (endedMs - begunMs)
}

/** 1: all are equal; 1/n: one has everything. */
function jain(values: readonly number[]): number {
  return sum(values) ** 2 / (values.length * sum(values.map((value) => value ** 2)))
}
