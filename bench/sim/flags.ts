import { parseArgs } from 'node:util'
import type { Durations } from './random.ts'
import type { Scenario, TrainerSpec } from './scenario.ts'

export interface SimOptions {
  scenario: Scenario
  /** URL of the database; absent: PGlite in a temporary folder. */
  databaseUrl?: string
  baselines: boolean
  json: boolean
}

const S = 1000

const options = {
  nodes: { type: 'string', default: '1000' },
  sessions: { type: 'string', default: '100000' },
  init: { type: 'string', default: '4' },
  ready: { type: 'string', default: '4' },
  run: { type: 'string', default: '8' },
  postrun: { type: 'string', default: '4' },
  trainer: { type: 'string', multiple: true },
  label: { type: 'string', multiple: true },
  'init-s': { type: 'string', default: 'lognormal:20:0.5' },
  'run-s': { type: 'string', default: 'lognormal:180:0.9' },
  'postrun-s': { type: 'string', default: 'lognormal:15:0.5' },
  'task-share': { type: 'string', default: '0.5' },
  'timeout-s': { type: 'string', default: '1800' },
  failures: { type: 'string', default: '0.02' },
  usable: { type: 'string', default: '0.95' },
  'node-life-s': { type: 'string', default: '20000' },
  'node-away-s': { type: 'string', default: '120' },
  'join-within-s': { type: 'string', default: '30' },
  herd: { type: 'boolean', default: false },
  outage: { type: 'string' },
  'lose-half': { type: 'string' },
  'lease-s': { type: 'string', default: '60' },
  'round-trip-ms': { type: 'string', default: '5' },
  'gather-ms': { type: 'string', default: '0' },
  'expire-s': { type: 'string', default: '1' },
  ahead: { type: 'string' },
  'no-ahead': { type: 'boolean', default: false },
  seed: { type: 'string', default: '1' },
  database: { type: 'string' },
  'no-baselines': { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
  help: { type: 'boolean', short: 'h', default: false },
} as const

export const HELP = `usage: node bench/sim/main.ts [flags]

Simulates a cluster over the real dispatch: virtual time, real statements. Two other schedulers do the same work in the
same run: an ideal one, and NVIDIA's policy.

  --nodes N            nodes (1000)
  --sessions N         sessions that all trainers submit together (100000)
  --init N --ready N --run N --postrun N
                       slots of each stage of a node (4, 4, 8, 4)
  --trainer SPEC       repeatable: sync or async, then differences from
                       groups=64,samples=8,priority=0,train=60,start=0,share=1,labels=,early-stop=,staleness=
                       Default: two synchronous trainers and an asynchronous one that keeps all slots busy.
  --label NAME:SHARE   this share of the nodes has this label; repeatable
  --init-s, --run-s, --postrun-s DIST
                       lognormal:MEDIAN:SIGMA, pareto:LEAST:ALPHA or a number, in seconds
  --task-share X       share of the variance of RUN that belongs to the task, not to the sample (0.5)
  --timeout-s N        of an agent (1800)
  --failures X         share of attempts that fail because of the infrastructure (0.02)
  --usable X           ended sessions that can be trained on (0.95)
  --node-life-s N      mean time to the loss of a node (20000), 0: never;  --node-away-s N  mean time until it is back (120)
  --join-within-s N    nodes join within (30);  --herd  all at once
  --outage AT[:FOR]    the server is down from second AT, for FOR (60)
  --lose-half AT       half of the nodes are lost at second AT
  --lease-s N          (60)        --round-trip-ms N  between node and server (5)
  --gather-ms N        results wait this long for others, so that a large simulation takes less real time (0)
  --expire-s N         interval of the server's search for lost leases (1)
  --ahead N            sessions that a node leases beyond its run slots (INIT + READY, as src/node/server-link/lease-capacity.ts has it)
  --no-ahead           nodes do not report how many of these would only wait, so that they are served in order of arrival
  --seed N             seed of the random numbers (1)
  --database URL       PostgreSQL instead of PGlite; the tables in it are emptied
  --no-baselines       Polar only
  --json               one line of JSON instead of tables

example: node bench/sim/main.ts --nodes 50 --sessions 3000 --lose-half 300
`

/** Returns undefined for --help. */
export function readFlags(args: readonly string[]): SimOptions | undefined {
  const { values } = parseArgs({ args: [...args], options, allowPositionals: false })
  if (values.help) return undefined
  const number = (name: keyof typeof options): number => toNumber(String(values[name]), name)
  const nodes = number('nodes')
  const widths = {
    init: number('init'),
    ready: number('ready'),
    run: number('run'),
    postrun: number('postrun'),
    backlog: 2 * number('postrun'),
  }
  const slots = nodes * widths.run
  const trainers = readTrainers(values.trainer ?? usualTrainers(slots), number('sessions'))
  const scenario: Scenario = {
    seed: number('seed'),
    nodes,
    widths,
    labels: Object.fromEntries((values.label ?? []).map(readLabel)),
    trainers,
    initMs: readDurations(values['init-s']),
    runMs: readDurations(values['run-s']),
    postrunMs: readDurations(values['postrun-s']),
    taskShare: number('task-share'),
    agentTimeoutMs: number('timeout-s') * S,
    failureRate: number('failures'),
    usableRate: number('usable'),
    nodeLifeMs: number('node-life-s') === 0 ? Infinity : number('node-life-s') * S,
    nodeAwayMs: number('node-away-s') * S,
    joinWithinMs: values.herd ? 0 : number('join-within-s') * S,
    leaseMs: number('lease-s') * S,
    roundTripMs: number('round-trip-ms'),
    gatherMs: number('gather-ms'),
    expireEveryMs: number('expire-s') * S,
    ahead: values.ahead === undefined ? widths.init + widths.ready : number('ahead'),
    tellsAhead: !values['no-ahead'],
  }
  if (values.outage !== undefined) {
    const [at = '', forS = '60'] = values.outage.split(':')
    scenario.outage = { atMs: toNumber(at, 'outage') * S, forMs: toNumber(forS, 'outage') * S }
  }
  if (values['lose-half'] !== undefined) scenario.massLoss = { atMs: number('lose-half') * S, share: 0.5 }
  return {
    scenario,
    ...(values.database !== undefined && { databaseUrl: values.database }),
    baselines: !values['no-baselines'],
    json: values.json,
  }
}

function usualTrainers(slots: number): string[] {
  const groups = Math.max(1, Math.round(slots / 16))
  const batch = Math.max(1, Math.round(slots / 32))
  return [`sync:groups=${batch}`, `sync:groups=${batch},priority=5`, `async:groups=${5 * groups},share=12`]
}

function readTrainers(specs: readonly string[], sessions: number): TrainerSpec[] {
  const read = specs.map((spec, i) => {
    const [kind = '', rest = ''] = spec.split(/:(.*)/s)
    if (kind !== 'sync' && kind !== 'async') throw new Error(`a trainer is sync or async, not ${kind}`)
    const given = Object.fromEntries(rest.split(',').flatMap((pair) => (pair === '' ? [] : [pair.split('=', 2)])))
    const get = (name: string, otherwise: number): number => {
      const text = given[name]
      delete given[name]
      return text === undefined ? otherwise : toNumber(text, name)
    }
    const labels = given['labels'] ?? ''
    delete given['labels']
    const trainer = {
      name: `${kind}${i + 1}`,
      kind,
      groups: get('groups', 64),
      samples: get('samples', 8),
      priority: get('priority', 0),
      requires: labels === '' ? [] : labels.split('+'),
      trainMs: get('train', 60) * S,
      startMs: get('start', 0) * S,
      earlyStop: get('early-stop', 0) || undefined,
      stalenessLimit: get('staleness', 0) || undefined,
    } as const
    const share = get('share', 1)
    const [unknown] = Object.keys(given)
    if (unknown !== undefined) throw new Error(`a trainer has no ${unknown}`)
    return { trainer, share }
  })
  const shares = read.reduce((sum, { share }) => sum + share, 0)
  return read.map(({ trainer, share }) => ({ ...trainer, sessions: Math.round((sessions * share) / shares) }))
}

function readLabel(text: string): [string, number] {
  const at = text.lastIndexOf(':')
  return at === -1 ? [text, 1] : [text.slice(0, at), toNumber(text.slice(at + 1), 'label')]
}

function readDurations(text: string): Durations {
  const [kind = '', first = '', second = ''] = text.split(':')
  if (kind === 'lognormal') return { kind, medianMs: toNumber(first, text) * S, sigma: toNumber(second, text) }
  if (kind === 'pareto') return { kind, leastMs: toNumber(first, text) * S, alpha: toNumber(second, text) }
  return { kind: 'fixed', ms: toNumber(kind, text) * S }
}

function toNumber(text: string, name: string): number {
  const number = Number(text)
  if (text.trim() === '' || !Number.isFinite(number) || number < 0) throw new Error(`${name}: ${text} is not a number`)
  return number
}
