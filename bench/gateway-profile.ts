/**
 * Profiles the gateway: `node bench/gateway-profile.ts [whole|whole-ids|stream|slow-streams] [file.cpuprofile]`.
 * Prints self time by function and by file; Chrome opens the profile.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { LoadShape } from './support/load.ts'
import { openArena } from './support/parties.ts'
import { printProfile } from './support/print-profile.ts'
import type { RequestOptions } from './support/prompt.ts'

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
  console.error(`Unknown load ${name}. Use ${Object.keys(loads).join(', ')}.`)
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
await printProfile(file, { each: 'call', count: result.calls })
console.log(
  `\n${result.calls} calls in ${result.seconds.toFixed(1)} s, ${(result.cpuMs / result.calls).toFixed(2)} CPU ms each ` +
    `with all threads, ${result.failed} failed; profile in ${file}`,
)
