import type { LoadedConfig } from '../../config/load-config.ts'
import { loadSecret } from '../../config/load-secret.ts'
import { defineCommand, usageError, type ExitCode } from '../command.ts'
import { loadFromFlags, NODE_ENGINE_FLAGS, NODE_FLAGS, PLACE_FLAGS, VERBOSE_FLAG } from '../input/config-flags.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { readServerNote, readTokens } from '../../compose/data-folder.ts'
import { explainFailure } from '../input/find-server.ts'
import { openWorker } from '../../compose/open-worker.ts'
import { exitCode, listenForStop } from '../stop-signals.ts'
import { surviveErrors } from '../../compose/survive-errors.ts'
import { untilAborted } from '../../lib/async/until-aborted.ts'
import { print, printError, printJson } from '../views/print.ts'

export const node = defineCommand({
  name: 'node',
  description: 'Join a server and run sessions for it: sandboxes, harnesses, a gateway, grades.',
  flags: {
    ...PLACE_FLAGS,
    server: { type: 'string', hint: 'URL', description: 'Where the server is (default: the one with the same folder)' },
    'token-file': { type: 'string', hint: 'FILE', description: 'File with a token for nodes; or set POLAR_TOKEN' },
    id: { type: 'string', hint: 'NAME', description: 'Its name (default: the name of this machine)' },
    adopt: {
      type: 'string',
      hint: 'DIR',
      multiple: true,
      description: 'An earlier --dir of this node: deliver what it finished and could not',
    },
    ...NODE_FLAGS,
    'allow-path': {
      type: 'string',
      hint: 'DIR',
      multiple: true,
      description: 'Let tasks upload from, mount and be graded by this',
    },
    ...NODE_ENGINE_FLAGS,
    json: { type: 'boolean', description: 'Print the line that says it is ready as JSON' },
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar node',
    'polar node --server http://10.0.0.5:8080 --token-file node.token --engine-url http://localhost:8000 --run 32',
  ],
  async run({ flags }): Promise<ExitCode> {
    const loaded = await loadFromFlags(flags)
    const { config } = loaded
    const server = await findServer(loaded)
    using stop = listenForStop()
    const logger = createLogger(config.log)
    const choice = {
      config,
      server,
      isOwnMachine: false,
      env: process.env,
      logger,
      signal: stop.first,
      adopt: flags.adopt,
    }
    await using opened = await openWorker(choice).catch((error: unknown) => {
      // Somebody who waited for the server to come up, and thought better of it.
      if (!stop.first.aborted) throw explainFailure(error)
      return undefined
    })
    if (opened === undefined) return exitCode(stop)
    const { nodeId, worker } = opened
    using _surviving = surviveErrors(logger)
    for (const warning of opened.warnings) printError(`${warning}\n`)
    const ready = { event: 'ready', url: server.url, node_id: nodeId }
    if (flags.json) printJson(ready)
    else print(`${nodeId} joined ${server.url}\n`)
    await Promise.race([worker.ended, untilAborted(stop.first)])
    if (stop.first.aborted) {
      printError('Draining: sessions that run are finished first. Once more gives them back at once.\n')
      await Promise.race([worker.drain(), untilAborted(stop.second)])
      if (stop.second.aborted) await worker.release()
    }
    await worker.ended
    return exitCode(stop)
  },
})

/** The server and a token for it: as configured, or those of a server with the same folder. */
async function findServer({ config }: LoadedConfig): Promise<{ url: string; token: string | undefined }> {
  const { node: section, data } = config
  const note = await readServerNote(data)
  const url = section.server ?? config.server.url ?? note?.url
  if (url === undefined)
    throw usageError('node', `say where the server is with --server URL; none was started with the folder ${data}`)
  const token = await loadSecret('node.token', { file: section.token_file, env: section.token_env }, process.env)
  // A token of this folder goes to no other server.
  const own = url === note?.url ? (await readTokens(data))?.node : undefined
  return { url, token: token ?? own }
}
