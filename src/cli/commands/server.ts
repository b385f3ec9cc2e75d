import { defineCommand, toggle, type ExitCode } from '../command.ts'
import { loadFromFlags, DATA_FLAGS, SERVER_FLAGS, VERBOSE_FLAG } from '../input/config-flags.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { openServer } from '../../compose/open-server.ts'
import { exitCode, listenForStop } from '../stop-signals.ts'
import { surviveErrors } from '../../compose/survive-errors.ts'
import { untilAborted } from '../../lib/async/until-aborted.ts'
import { print, printError, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'server',
  description: 'Accept tasks from trainers, lease their sessions to nodes, and store the results.',
  flags: {
    ...DATA_FLAGS,
    ...SERVER_FLAGS,
    json: toggle('Print the ready line as JSON'),
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar server',
    'polar server --port 0 --dir /tmp/polar --json',
    'polar server --config polar.yaml --database postgres://polar@db/polar',
  ],
  async run({ flags }): Promise<ExitCode> {
    const loaded = await loadFromFlags(flags)
    using stop = listenForStop({ twoSteps: true })
    const { config } = loaded
    const deps = { env: process.env, logger: createLogger(config.log), signal: stop.first }
    await using opened = await openServer(loaded, deps).catch((error: unknown) => {
      if (!stop.first.aborted) throw error
      return undefined
    })
    if (opened === undefined) return exitCode(stop)
    using _surviving = surviveErrors(deps.logger)
    if (!isLoopbackHost(config.server.host) && config.server.tls === undefined)
      printError('Warning: without TLS, tokens and results can be read in transit. Set server.tls.\n')
    const { url, tokens } = opened
    if (flags.json) printJson({ event: 'ready', url, tokens_file: tokens?.file ?? null })
    else print(`${url}\n`)
    if (tokens?.file !== undefined) printError(`Tokens for trainers and nodes: ${tokens.file}\n`)
    await untilAborted(stop.first)
    return exitCode(stop)
  },
})
