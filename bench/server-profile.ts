/**
 * Profiles the server: `node bench/server-profile.ts [nodes] [file.cpuprofile]`. Prints self time by function and
 * by file for sessions that do nothing; Chrome opens the profile.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEngineProcess } from './support/child.ts'
import { printProfile } from './support/print-profile.ts'
import { openServerCluster, runTasks, timeTasks } from './support/server-cluster.ts'

const SESSIONS = 320

const [nodes = '1', file = join(tmpdir(), 'polar-server.cpuprofile')] = process.argv.slice(2)
await using engine = await startEngineProcess()
await using cluster = await openServerCluster(engine.ready.url, Number(nodes))
await runTasks(cluster.client, 'warm', 1)
await cluster.server.ask({ kind: 'profile-start' })
const { seconds, serverMs } = await timeTasks(cluster, SESSIONS)
await cluster.server.ask({ kind: 'profile-stop', file })
await printProfile(file, { each: 'session', count: SESSIONS })
console.log(
  `\n${SESSIONS} sessions in ${seconds.toFixed(1)} s, ${serverMs.toFixed(2)} CPU ms ` +
    `each with all threads; profile in ${file}`,
)
