import { createCallLogReader } from '../src/store/call-log/reader.ts'
import { competitors, installCompetitors, type CompetitorName } from './support/competitors.ts'
import { openArena, type Arena, type Party, type PartyName } from './support/parties.ts'
import type { Lag } from './support/lag.ts'
import type { LoadResult, LoadShape } from './support/load.ts'
import type { RequestOptions } from './support/prompt.ts'
import { percentile, sum } from './support/stats.ts'
import { printTitledTable } from './support/table.ts'
import { verifyParties } from './support/verify.ts'

const CALLERS = 32
const STREAMS = 512
const STREAM_INTERVAL_MS = 100
const PARTIES: readonly PartyName[] = ['direct', 'nginx', 'byte proxy', 'Portkey', 'LiteLLM', 'gateway']

const WANTED_MULTIPLES: Readonly<Record<CompetitorName, number>> = { Portkey: 5, LiteLLM: 10 }

type Measured = LoadResult & { cpuMs: number }
type Results = Map<PartyName, Measured>

export interface GatewayBenchOptions {
  /** 30 s of concurrent streams instead of 10. */
  long?: boolean
  /** Fetches the other gateways first, where they are not installed yet. */
  install?: boolean
}

/**
 * Compares the gateway with the same bytes sent directly, through nginx, through a minimal proxy in this runtime, and through
 * other gateways.
 */
export async function benchGateway({ long = false, install = false }: GatewayBenchOptions = {}): Promise<void> {
  if (install) await installCompetitors()
  await using arena = await openArena({ sessions: STREAMS, parties: PARTIES })
  const { answers } = arena
  console.log(
    `${kilobytes(answers.promptBytes)} KB request (${answers.promptTokens} tokens), ${answers.sampledTokens} sampled ` +
      `tokens; the engine's answer is ${kilobytes(answers.wholeBytes)} KB whole, ${kilobytes(answers.streamBytes)} KB ` +
      'streamed, with ids and log probabilities',
  )
  await keepVerified(arena)
  for (const reason of arena.missing) console.log(`a row is missing: ${reason}`)
  const summary = new Summary()

  await throughput(arena, summary)
  await latency(arena, summary, false)
  await latency(arena, summary, true)
  await concurrentStreams(arena, summary, long ? 30 : 10)
  await arena.gateway[Symbol.asyncDispose]()
  await checkLogs(arena)
  summary.print()
}

/** Measures only parties that return the engine's answer, because an error is sent quickly. */
async function keepVerified(arena: Arena): Promise<void> {
  const verdicts = await verifyParties(arena)
  for (const { party, problem, idsPassedOn } of verdicts) {
    if (problem !== undefined) arena.missing.push(`${party.name} does not work: ${problem}`)
    else if (!idsPassedOn) console.log(`${party.name} does not relay token ids`)
  }
  arena.parties = verdicts.filter(({ problem }) => problem === undefined).map(({ party }) => party)
  for (const [name, { version }] of Object.entries(competitors))
    if (arena.parties.some((party) => party.name === name)) console.log(`${name} ${version}`)
}

/** Measured values and their targets. */
class Summary {
  readonly #rows: string[][] = [['what', 'measured', 'target']]

  add(what: string, measured: string, target: string): void {
    this.#rows.push([what, measured, target])
  }

  addRatios(what: string, perSecond: (name: PartyName) => number, perCpuSecond: (name: PartyName) => number): void {
    const ratio = (base: PartyName): string =>
      `${percent(perSecond('gateway') / perSecond(base))} (by CPU ${percent(perCpuSecond('gateway') / perCpuSecond(base))})`
    this.add(`${what}: calls/s of the byte proxy's`, ratio('byte proxy'), '≥ 80 %')
    this.add(`${what}: calls/s of nginx's`, ratio('nginx'), '≥ 25 %')
    const times = (base: PartyName): string =>
      `${multiple(perSecond('gateway') / perSecond(base))} (by CPU ${multiple(perCpuSecond('gateway') / perCpuSecond(base))})`
    for (const [name, wanted] of Object.entries(WANTED_MULTIPLES) as [CompetitorName, number][])
      this.add(`${what}: calls/s against ${name}`, times(name), `≥ ${wanted}×`)
  }

  print(): void {
    printTitledTable('against the targets', this.#rows)
  }
}

// --- throughput -------------------------------------------------------------------------------------------------------

async function throughput(arena: Arena, summary: Summary): Promise<void> {
  const shape: LoadShape = { kind: 'closed', callers: CALLERS, seconds: 1.2 }
  const runs: { title: string; request: RequestOptions; short: string }[] = [
    {
      title: 'whole answers',
      short: 'whole answers',
      request: { stream: false, replay: '', withIds: false },
    },
    {
      title: 'whole answers, the caller requests ids and log probabilities too',
      short: 'whole answers with ids',
      request: { stream: false, replay: '', withIds: true },
    },
    {
      title: 'streams, 8 tokens in a write',
      short: 'streams',
      request: { stream: true, replay: 'group=8', withIds: false },
    },
  ]
  for (const { title, short, request } of runs) {
    const results = await interleave(arena, 3, { request, shape, sessions: CALLERS })
    const perSecond = (name: PartyName): number => rate(results.get(name))
    const perCpuSecond = (name: PartyName): number => 1000 / cpuPerCall(results.get(name))
    printTitledTable(title, [
      ['party', 'callers', 'calls/s', 'of nginx', 'of byte proxy', 'CPU ms/call', 'of byte proxy by CPU', 'failed'],
      ...arena.parties.map(({ name, maxCallers }) => [
        name,
        String(Math.min(CALLERS, maxCallers)),
        number(perSecond(name), perSecond(name) < 10 ? 1 : 0),
        percent(perSecond(name) / perSecond('nginx')),
        percent(perSecond(name) / perSecond('byte proxy')),
        number(cpuPerCall(results.get(name)), 2),
        name === 'direct' ? '' : percent(perCpuSecond(name) / perCpuSecond('byte proxy')),
        String(results.get(name)?.failed),
      ]),
    ])
    summary.addRatios(short, perSecond, perCpuSecond)
  }
}

function rate(result: Measured | undefined): number {
  return result === undefined ? Number.NaN : (result.calls - result.failed) / result.seconds
}

function cpuPerCall(result: Measured | undefined): number {
  return result === undefined ? Number.NaN : result.cpuMs / result.calls
}

// --- latency ----------------------------------------------------------------------------------------------------------

/** Two loads that do not saturate the machine: one call at a time, and an engine that answers slowly. */
const PACES: readonly { inFlight: number; replay: string; perSecond: number; oneAtATime: boolean }[] = [
  { inFlight: 1, replay: '', perSecond: 100, oneAtATime: true },
  { inFlight: 64, replay: 'delay=500', perSecond: 128, oneAtATime: false },
]

/** Measures the time until the end of whole answers, or until the first byte of streams. */
async function latency(arena: Arena, summary: Summary, stream: boolean): Promise<void> {
  const what = stream ? 'time to first byte' : 'latency'
  for (const { inFlight, replay, perSecond, oneAtATime } of PACES) {
    const shape: LoadShape = { kind: 'paced', perSecond, seconds: 1.5, oneAtATime }
    const request = { stream, replay: stream ? `${replay} tokens=32 group=1` : replay, withIds: false }
    const parties = thatKeepPace(arena, inFlight)
    const results = await interleave(arena, 2, { request, shape, sessions: 64 }, parties)
    const title = `${what} of ${stream ? 'streams' : 'whole answers'}, ${inFlight} in flight, ${perSecond}/s`
    const added = printAdded(parties, title, results, stream ? 'firstByteMs' : 'latencyMs')
    const target = stream ? '≤ 2 ms' : '≤ 1 / ≤ 5 ms'
    summary.add(`added ${what} p50 / p99, ${inFlight} in flight`, `${added.p50} / ${added.p99} ms`, target)
  }
}

/** Whether a party can serve this many calls at a time; otherwise only its queue would be measured. */
function thatKeepPace({ parties }: Arena, inFlight: number): Party[] {
  return parties.filter(({ maxCallers }) => maxCallers >= inFlight)
}

function printAdded(
  parties: readonly Party[],
  title: string,
  results: Results,
  times: 'latencyMs' | 'firstByteMs',
): { p50: string; p99: string } {
  const at = (name: PartyName, p: number): number => {
    const result = results.get(name)
    return result === undefined ? Number.NaN : percentile(result[times], p)
  }
  const added = (name: PartyName, p: number): string => number(at(name, p) - at('direct', p), 2)
  printTitledTable(title, [
    ['party', 'p50 ms', 'p99 ms', 'added p50', 'added p99', 'calls', 'failed'],
    ...parties.map(({ name }) => [
      name,
      number(at(name, 50), 2),
      number(at(name, 99), 2),
      added(name, 50),
      added(name, 99),
      String(results.get(name)?.calls),
      String(results.get(name)?.failed),
    ]),
  ])
  return { p50: added('gateway', 50), p99: added('gateway', 99) }
}

// --- concurrent streams -----------------------------------------------------------------------------------------------

async function concurrentStreams(arena: Arena, summary: Summary, seconds: number): Promise<void> {
  const title = `${STREAMS} streams at once for ${seconds} s, ${1000 / STREAM_INTERVAL_MS} tokens/s each`
  const rows = [['party', 'dropped', 'tokens/s', 'CPU', 'longest silence p99 ms', 'loop lag p50 ms', 'p99', 'max']]
  for (const party of arena.parties) {
    if (party.takeLag === undefined) continue
    await party.takeLag()
    const result = await arena.load(party, {
      request: { stream: true, replay: `interval=${STREAM_INTERVAL_MS} seconds=${seconds}`, withIds: false },
      // The starts are spread over one interval; over more, the streams would not all be open at the same time.
      shape: { kind: 'streams', count: STREAMS, spreadSeconds: 1 },
      sessions: STREAMS,
    })
    const lag: Lag = await party.takeLag()
    const dropped = countDropped(result, Math.round((seconds * 1000) / STREAM_INTERVAL_MS))
    rows.push([
      party.name,
      String(dropped),
      number(sum(result.events) / result.seconds, 0),
      percent(result.cpuMs / 1000 / result.seconds),
      number(percentile(result.gapMs, 99), 0),
      number(lag.p50Ms, 1),
      number(lag.p99Ms, 1),
      number(lag.maxMs, 1),
    ])
    if (party.name === 'gateway') {
      summary.add(`${STREAMS} streams for ${seconds} s: dropped`, String(dropped), '0')
      summary.add(`${STREAMS} streams for ${seconds} s: event-loop lag p99`, `${number(lag.p99Ms, 1)} ms`, '≤ 50 ms')
    }
    if (result.firstFailure !== undefined) console.log(`${party.name}: first failure: ${result.firstFailure}`)
  }
  printTitledTable(title, rows)
}

/** A stream that ended normally but lacks events counts as dropped. */
function countDropped(result: LoadResult, expectedEvents: number): number {
  const short = result.events.filter((count) => count < expectedEvents).length
  return Math.max(result.failed, short, STREAMS - result.events.length)
}

// --- what was kept ----------------------------------------------------------------------------------------------------

/** A gateway that is fast because it lost something is not fast. */
async function checkLogs(arena: Arena): Promise<void> {
  const reader = createCallLogReader({ dir: arena.logDir })
  const sessions = (await reader.list()).slice(0, 4)
  let turns = 0
  let exact = 0
  let incomplete = 0
  for (const id of sessions) {
    const session = await reader.load(id)
    if (!session.complete) incomplete += 1
    turns += session.turns.length
    exact += session.turns.filter((turn) => turn.response?.grade === 'exact').length
  }
  console.log(
    `of ${sessions.length} call logs read back: ${turns} turns, ${exact} of them exact; ${incomplete} sessions incomplete`,
  )
}

// --- rounds -----------------------------------------------------------------------------------------------------------

type Job = Parameters<Arena['load']>[1]

/** A B C D A B C D: what else the machine does hits all parties alike. The first round warms up and is not counted. */
async function interleave(arena: Arena, rounds: number, job: Job, parties = arena.parties): Promise<Results> {
  const results: Results = new Map()
  for (const party of parties) await arena.load(party, { ...job, shape: { ...job.shape, seconds: 0.5 } as LoadShape })
  for (let round = 0; round < rounds; round++) {
    for (const party of parties) merge(results, party, await arena.load(party, job))
  }
  return results
}

function merge(results: Results, { name }: Party, next: Measured): void {
  const so = results.get(name)
  if (so === undefined) {
    results.set(name, next)
    return
  }
  so.seconds += next.seconds
  so.calls += next.calls
  so.failed += next.failed
  so.bytes += next.bytes
  so.cpuMs += next.cpuMs
  so.latencyMs.push(...next.latencyMs)
  so.firstByteMs.push(...next.firstByteMs)
}

function kilobytes(bytes: number): string {
  return (bytes / 1024).toFixed(0)
}

function number(value: number, digits: number): string {
  return Number.isNaN(value) ? '–' : value.toFixed(digits)
}

function percent(ratio: number): string {
  return Number.isNaN(ratio) ? '–' : `${(ratio * 100).toFixed(ratio < 0.1 ? 1 : 0)} %`
}

function multiple(ratio: number): string {
  return Number.isNaN(ratio) ? '–' : `${ratio.toFixed(ratio < 10 ? 1 : 0)}×`
}
