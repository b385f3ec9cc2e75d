/** Another gateway in front of an upstream: `<name> <upstream>`. Its supervisor ends with the parent. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { serveParent } from './child.ts'
import { competitors, findCompetitor, type CompetitorName } from './competitors.ts'
import { freePort, startService, type Service, type ServiceReady } from './service.ts'

/** Python imports many modules slowly. */
const START_TIMEOUT_MS = 60_000

const [name = '', upstreamUrl = ''] = process.argv.slice(2)
const scratch = await mkdtemp(join(tmpdir(), 'polar-competitor-'))
let service: Service | undefined
serveParent(await start(name as CompetitorName), { stop })

async function start(competitor: CompetitorName): Promise<ServiceReady> {
  const folder = findCompetitor(competitor)
  if (folder === undefined)
    return { missing: `${competitor} is not installed; npm run bench -- gateway --install does it` }
  const port = await freePort()
  const command = await competitors[competitor].command(folder, { port, upstreamUrl, scratch })
  const options = { ...command, name: competitor, cwd: scratch, port, timeoutMs: START_TIMEOUT_MS }
  service = await startService(options)
  return service.ready
}

async function stop(): Promise<void> {
  await service?.stop()
  await rm(scratch, { recursive: true, force: true })
}
