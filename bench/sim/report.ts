import { printTitledTable } from '../support/table.ts'
import type { PolarSummary } from './simulate.ts'
import type { Scenario } from './scenario.ts'
import type { Summary } from './summary.ts'

export interface Results {
  polar: PolarSummary
  nvidia?: Summary
  ideal?: Summary
}

/** Prints the results of all schedulers side by side, Polar first, with ratios. */
export function printResults(scenario: Scenario, { polar, nvidia, ideal }: Results): void {
  const { nodes, widths, trainers, tellsAhead, ahead } = scenario
  const parties = [polar.summary, nvidia, ideal].filter((each) => each !== undefined)
  const heading = ['', 'Polar', ...(nvidia ? ["NVIDIA's policy"] : []), ...(ideal ? ['ideal'] : [])]
  const row = (name: string, show: (summary: Summary) => string): string[] => [name, ...parties.map(show)]
  const title =
    `${nodes} nodes of ${widths.run} run slots, ${trainers.length} trainers, ${polar.summary.sessions} sessions, ` +
    `${ahead} ahead, ${tellsAhead ? 'idle nodes first' : 'nodes in order of arrival'}`
  printTitledTable(title, [
    heading,
    row('until all sessions have ended', ({ makespanS }) => `${makespanS.toFixed(0)} s`),
    row('slots in use while there is plenty of work', ({ saturatedUse }) => percent(saturatedUse)),
    row('… for a time of', ({ saturatedS }) => `${saturatedS.toFixed(0)} s`),
    row('slots in use of those with work', ({ use }) => percent(use)),
    row('idle slots, hours', ({ idleSlotHours }) => idleSlotHours.toFixed(0)),
    row('… while sessions wait on other nodes', ({ misplacedHours }) =>
      misplacedHours > 0 ? misplacedHours.toFixed(1) : '-',
    ),
    row('time in the queue p50', ({ queueAgeS }) => secondsOf(queueAgeS.p50)),
    row('… p95', ({ queueAgeS }) => secondsOf(queueAgeS.p95)),
    row('… longest', ({ queueAgeS }) => secondsOf(queueAgeS.max)),
    row('leased again after a node died, p50', ({ rescueS }) => secondsOf(rescueS.p50)),
    row('… p95', ({ rescueS }) => secondsOf(rescueS.p95)),
    row('sessions that count', ({ valid }) => String(valid)),
    row('… failed finally', ({ failed }) => String(failed)),
    row('… stopped', ({ cancelled }) => String(cancelled)),
    row('refills', ({ refills }) => String(refills)),
    row('hours in RUN that count', ({ usefulHours }) => usefulHours.toFixed(0)),
    row('hours lost with nodes', ({ wastedHours }) => (wastedHours['node died'] ?? 0).toFixed(1)),
    row('hours failed or rejected', ({ wastedHours: { failed = 0, refused = 0 } }) => (failed + refused).toFixed(1)),
    row('hours in RUN saved by early stop', ({ sparedHours }) => sparedHours.toFixed(1)),
  ])
  printTitledTable('fairness and tails', [
    heading,
    row('shares of the trainers, Jain (1: equal)', ({ trainerJain }) => trainerJain.toFixed(3)),
    row('… largest to smallest', ({ trainerMaxToMin }) => trainerMaxToMin.toFixed(2)),
    row('a task, times its longest session, p50', ({ slowdown }) => slowdown.p50.toFixed(2)),
    row('… p95', ({ slowdown }) => slowdown.p95.toFixed(2)),
    row('… most', ({ slowdown }) => slowdown.max.toFixed(1)),
    row('… Jain', ({ slowdown }) => slowdown.jain.toFixed(3)),
    row('synchronous batches', ({ batches }) => String(batches.count)),
    row('… mean duration', ({ batches }) => secondsOf(batches.seconds)),
    row('… of it for the last tenth', ({ batches }) => percent(batches.tailShare)),
    row('first to last of a group, p50', ({ batches }) => secondsOf(batches.groupSpreadS.p50)),
    row('… p95', ({ batches }) => secondsOf(batches.groupSpreadS.p95)),
  ])
  printDatabase(polar)
  if (nvidia !== undefined && ideal !== undefined) printTargets(polar.summary, nvidia, ideal)
}

function printDatabase({ database, real, server, summary }: PolarSummary): void {
  const rows = Object.entries(database.operations).sort(([, a], [, b]) => b.ms - a.ms)
  printTitledTable(
    `the database (${database.kind}): ${database.statements} statements, ${(database.statements / summary.makespanS).toFixed(0)}/s ` +
      `of virtual and ${(database.statements / real.seconds).toFixed(0)}/s of real time, ${database.mb.toFixed(0)} MB, ` +
      `${database.rows.sessions} sessions, ${database.rows.attempts} attempts, ${database.rows.events} events`,
    [
      ['operation', 'calls', 'statements each', 'ms each', 'longest ms', 'calls/s virtual', 'of all its time'],
      ...rows.map(([name, { calls, statements, ms, longestMs }]) => [
        name,
        String(calls),
        (statements / calls).toFixed(1),
        (ms / calls).toFixed(2),
        longestMs.toFixed(0),
        (calls / summary.makespanS).toFixed(1),
        percent(ms / database.ms),
      ]),
    ],
  )
  console.log(
    `\nserver: busy ${percent(server.busyShare)} of virtual time by the model; a call waited ${server.meanWaitMs.toFixed(1)} ms, ` +
      `${server.longestWaitMs.toFixed(0)} ms at most\n` +
      `simulated in ${real.seconds.toFixed(0)} s (${(summary.makespanS / real.seconds).toFixed(0)} times real time), ` +
      `${real.heapMb.toFixed(0)} MB of heap, ${real.residentMb.toFixed(0)} MB resident`,
  )
}

function printTargets(polar: Summary, nvidia: Summary, ideal: Summary): void {
  printTitledTable('compared with the other schedulers and the targets', [
    ['what', 'measured', 'target'],
    ['slots in use while there is plenty of work', percent(polar.saturatedUse), '≥ 95 %'],
    ['until all have ended, times the ideal', (polar.makespanS / ideal.makespanS).toFixed(2), ''],
    ["… NVIDIA's policy", (nvidia.makespanS / ideal.makespanS).toFixed(2), ''],
    ['sessions that count an hour, of the ideal', percent(rate(polar) / rate(ideal)), ''],
    ["… NVIDIA's policy", percent(rate(nvidia) / rate(ideal)), ''],
    ["… ours to NVIDIA's policy", `${(rate(polar) / rate(nvidia)).toFixed(2)}×`, ''],
    ['a synchronous batch, times the ideal', (polar.batches.seconds / ideal.batches.seconds).toFixed(2), ''],
    ["… NVIDIA's policy", (nvidia.batches.seconds / ideal.batches.seconds).toFixed(2), ''],
  ])
}

function rate({ valid, makespanS }: Summary): number {
  return valid / makespanS
}

function percent(share: number): string {
  return Number.isNaN(share) ? '-' : `${(100 * share).toFixed(1)} %`
}

function secondsOf(seconds: number): string {
  if (Number.isNaN(seconds)) return '-'
  return seconds < 10 ? `${seconds.toFixed(2)} s` : `${seconds.toFixed(0)} s`
}
