import { defineCommand, option, toggle, usageError, type ExitCode } from '../command.ts'
import { loadFromFlags, NODE_ENGINE_FLAGS, NODE_FLAGS, DATA_FLAGS, VERBOSE_FLAG } from '../input/config-flags.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { explainFailure, findNodeServer } from '../input/find-server.ts'
import { openWorker } from '../../compose/open-worker.ts'
import { exitCode, listenForStop } from '../stop-signals.ts'
import { surviveErrors } from '../../compose/survive-errors.ts'
import { untilAborted } from '../../lib/async/until-aborted.ts'
import { print, printError, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'node',
  description: 'Join a server, lease sessions, run them in sandboxes and grade them.',
  flags: {
    ...DATA_FLAGS,
    server: option('URL', 'URL of the server (default: the server with the same --dir)'),
    'token-file': option('FILE', 'File with a token of scope node; or set POLAR_TOKEN'),
    id: option('NAME', 'Id of the node (default: the host name)'),
    adopt: option('DIR', 'Earlier --dir of this node, whose undelivered results are delivered; may be repeated', {
      multiple: true,
    }),
    ...NODE_FLAGS,
    'allow-path': option(
      'DIR',
      'Folder that tasks may upload from, mount, and load grading files from; may be repeated',
      { multiple: true },
    ),
    ...NODE_ENGINE_FLAGS,
    json: toggle('Print the ready line as JSON'),
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar node',
    'polar node --server http://10.0.0.5:8080 --token-file node.token --engine-url http://localhost:8000 --run 32',
  ],
  async run({ flags }): Promise<ExitCode> {
    const { config } = await loadFromFlags(flags)
    const server = await findNodeServer(config, process.env)
    if (server === undefined)
      throw usageError('node', `name the server with --server URL; no server uses the folder ${config.data}`)
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
      // The user stopped the node while it waited for the server.
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
      printError('Draining: waiting for running sessions. A second signal returns them to the queue.\n')
      await Promise.race([worker.drain(), untilAborted(stop.second)])
      if (stop.second.aborted) await worker.release()
    }
    await worker.ended
    return exitCode(stop)
  },
})
