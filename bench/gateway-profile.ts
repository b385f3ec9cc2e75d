/**
 * Where the gateway's time goes: `node bench/gateway-profile.ts [whole|whole-ids|stream|slow-streams] [file.cpuprofile]`.
 * Prints self time by function and by file; the profile itself opens in any Chrome.
 */
import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Profiler } from 'node:inspector'
import type { LoadShape } from './support/load.ts'
import { openArena } from './support/parties.ts'
import type { RequestOptions } from './support/prompt.ts'
import { printTitledTable } from './support/table.ts'

const TOP = 45

const closed = (seconds: number): LoadShape => ({ kind: 'closed', callers: 32, seconds })

const loads: Record<string, { request: RequestOptions; warmUp: LoadShape; shape: LoadShape }> = {
  whole: { request: { stream: false, replay: '', withIds: false }, warmUp: closed(3), shape: closed(8) },
  'whole-ids': { request: { stream: false, replay: '', withIds: true }, warmUp: closed(3), shape: closed(8) },
  stream: { request: { stream: true, replay: 'group=8', withIds: false }, warmUp: closed(3), shape: closed(8) },
  'slow-streams': {
    request: { stream: true, replay: 'interval=100 seconds=8', withIds: false },
    warmUp: { kind: 'streams', count: 64, spreadSeconds: 1 },
    shape: { kind: 'streams', count: 512, spreadSeconds: 1 },
  },
}

const [name = 'whole', file = join(tmpdir(), `polar-gateway-${name}.cpuprofile`)] = process.argv.slice(2)
const load = loads[name]
if (load === undefined) {
  console.error(`There is no load ${name}; there are ${Object.keys(loads).join(', ')}.`)
  process.exit(2)
}
await using arena = await openArena({ sessions: 512, parties: ['gateway'] })
const [party] = arena.parties
if (party === undefined) throw new Error('no gateway')
const sessions = load.shape.kind === 'streams' ? 512 : 32
await arena.load(party, { request: load.request, shape: load.warmUp, sessions })
await arena.gateway.ask({ kind: 'profile-start' })
const result = await arena.load(party, { request: load.request, shape: load.shape, sessions })
await arena.gateway.ask({ kind: 'profile-stop', file })
report(JSON.parse(await readFile(file, 'utf8')) as Profiler.Profile)
console.log(
  `\n${result.calls} calls in ${result.seconds.toFixed(1)} s, ${(result.cpuMs / result.calls).toFixed(2)} CPU ms each ` +
    `with all threads, ${result.failed} failed; profile in ${file}`,
)

function report(profile: Profiler.Profile): void {
  const selfUs = new Map<number, number>()
  profile.samples?.forEach((id, i) => selfUs.set(id, (selfUs.get(id) ?? 0) + (profile.timeDeltas?.[i] ?? 0)))
  const byFunction = new Map<string, number>()
  const byFile = new Map<string, number>()
  let busy = 0
  for (const { id, callFrame } of profile.nodes) {
    const us = selfUs.get(id) ?? 0
    if (callFrame.functionName === '(idle)' || us === 0) continue
    busy += us
    const place = callFrame.url.replace(/^.*\/(src|node_modules)\//, (_, root: string) =>
      root === 'src' ? 'src/' : '',
    )
    add(byFunction, `${callFrame.functionName || '(anonymous)'}  ${place}:${callFrame.lineNumber + 1}`, us)
    add(byFile, place || callFrame.functionName || '(native)', us)
  }
  for (const [title, times, count] of [
    ['self time by function', byFunction, TOP],
    ['self time by file', byFile, 25],
  ] as const) {
    const top = [...times].sort(([, a], [, b]) => b - a).slice(0, count)
    printTitledTable(title, [
      ['where', '%', 'ms/call'],
      ...top.map(([key, us]) => [key, ((100 * us) / busy).toFixed(1), (us / 1000 / result.calls).toFixed(3)]),
    ])
  }
}

function add(times: Map<string, number>, key: string, us: number): void {
  times.set(key, (times.get(key) ?? 0) + us)
}
