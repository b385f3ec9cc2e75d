/**
 * Profiles the server: `node bench/server-profile.ts [nodes] [file.cpuprofile]`. Prints self time by function and
 * by file for sessions that do nothing; Chrome opens the profile.
 */
import { readFile } from 'node:fs/promises'
import type { Profiler } from 'node:inspector'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Child } from './support/child.ts'
import { printProfile } from './support/print-profile.ts'
import { openServerCluster, runTasks, SAMPLES } from './support/server-cluster.ts'

const SESSIONS = 320

const [nodes = '1', file = join(tmpdir(), 'polar-server.cpuprofile')] = process.argv.slice(2)
await using engine = await Child.start<{ url: string }>(new URL('support/engine-process.ts', import.meta.url))
await using cluster = await openServerCluster(engine.ready.url, Number(nodes))
const { server, client, cpuMs } = cluster
await runTasks(client, 'warm', 1)
await server.ask({ kind: 'profile-start' })
const before = await cpuMs()
const startedAt = performance.now()
await runTasks(client, 'timed', SESSIONS / SAMPLES)
const seconds = (performance.now() - startedAt) / 1000
const after = await cpuMs()
await server.ask({ kind: 'profile-stop', file })
printProfile(JSON.parse(await readFile(file, 'utf8')) as Profiler.Profile, { each: 'session', count: SESSIONS })
console.log(
  `\n${SESSIONS} sessions in ${seconds.toFixed(1)} s, ${((after.server - before.server) / SESSIONS).toFixed(2)} CPU ms ` +
    `each with all threads; profile in ${file}`,
)
