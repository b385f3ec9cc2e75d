import { isIPv6, type AddressInfo } from 'node:net'
import { resolve } from 'node:path'
import { createAdaptorServer } from '@hono/node-server'
import { createControlApp } from '../../gateway/sessions/control-app.ts'
import type { ContinuationMode } from '../../gateway/sessions/sessions.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { protectFromOutOfMemory } from '../../lib/process/oom-score.ts'
import { tokenProblem } from '../../lib/net/request-tokens.ts'
import { RolloutError } from '../../model/failure.ts'
import { SESSION_MEMORY_MB } from '../../model/session.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, usageError, type ExitCode } from '../command.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { controlTokenFile, obtainControlToken } from '../../compose/data-folder.ts'
import { loadQuirks } from '../../compose/load-quirks.ts'
import { openGateway } from '../../compose/open-gateway.ts'
import { warningsOf } from '../../compose/open-engine.ts'
import { continuationOf } from '../../gateway/upstreams/upstream.ts'
import { openUntil } from '../input/open-until.ts'
import {
  CONTINUATION_FLAG,
  DURABILITY_FLAG,
  ENGINE_FLAGS,
  ENGINE_KEY_FLAG,
  QUIRKS_FLAG,
  toEngineChoice,
} from '../input/engine-flags.ts'
import { DEFAULT_OUT } from '../input/resolve-session.ts'
import { surviveErrors } from '../../compose/survive-errors.ts'
import { untilSignal } from '../until-signal.ts'
import { assertWritable } from '../../compose/writable.ts'
import { print, printError } from '../views/print.ts'

export const command = defineCommand({
  name: 'gateway',
  description:
    'Serve the model calls of many sessions: a data plane for harnesses, a control API for trainers and nodes.',
  flags: {
    ...ENGINE_FLAGS,
    'engine-key': ENGINE_KEY_FLAG,
    out: option('DIR', 'Folder for sessions', { default: DEFAULT_OUT }),
    workers: option('N', 'Processes of the data plane, each with its own port', { default: '1' }),
    host: option('ADDRESS', 'Address of the data plane', { default: '127.0.0.1' }),
    'control-host': option('ADDRESS', 'Address of the control API', { default: '127.0.0.1' }),
    'control-port': option('N', 'Port of the control API; 0 chooses a free port', { default: '8081' }),
    'control-token': option(
      'TOKEN',
      'Token of the control API; or set POLAR_CONTROL_TOKEN (default: generated in control.token in --out)',
    ),
    continuation: CONTINUATION_FLAG,
    'session-memory': option('MB', 'Memory limit in MB for the conversations of one session', {
      default: String(SESSION_MEMORY_MB),
    }),
    quirks: QUIRKS_FLAG,
    durability: DURABILITY_FLAG,
    verbose: toggle('Log at level debug'),
  },
  examples: [
    'polar gateway --engine-url http://localhost:8000 --workers 4',
    `curl -X POST http://127.0.0.1:8081/sessions -H "Authorization: Bearer $(cat ${controlTokenFile(DEFAULT_OUT)})" -d '{"task_id": "t1", "sampling": {"temperature": 1}}'`,
  ],
  async run({ flags }): Promise<ExitCode> {
    const given = flags['control-token'] ?? process.env['POLAR_CONTROL_TOKEN']
    if (!isLoopbackHost(flags['control-host']) && given === undefined) {
      throw usageError('gateway', `${flags['control-host']} can be reached from other machines; set --control-token`)
    }
    const problem = given === undefined ? undefined : tokenProblem(given)
    if (problem !== undefined) throw usageError('gateway', `the control token ${problem}`)
    const count = parseNumber('gateway', 'workers', flags.workers, { min: 1, max: 64 })
    const controlPort = parseNumber('gateway', 'control-port', flags['control-port'], { min: 0, max: 65_535 })
    const dir = resolve(flags.out)
    await assertWritable(dir)
    const token = given ?? (await obtainControlToken(dir))
    protectFromOutOfMemory()
    const quirks = await loadQuirks(flags.quirks)
    const interrupted = untilSignal()
    const stopped = new AbortController()
    void interrupted.then(() => stopped.abort())
    await using engine = await openUntil(stopped.signal, toEngineChoice('gateway', flags))
    if (engine === undefined) return EXIT.interrupted
    const logLevel = flags.verbose ? 'debug' : 'warn'
    const logger = createLogger(logLevel)
    for (const warning of warningsOf(engine, flags.continuation)) printError(`${warning}\n`)
    const { url, kind, capabilities } = engine.info
    const continuation = continuationOf(capabilities, flags.continuation)
    const settings = {
      host: flags.host,
      dir,
      durability: flags.durability as 'process' | 'disk',
      lockWaitMs: 0,
      continuation: flags.continuation as ContinuationMode,
      sessionMemoryMb: parseNumber('gateway', 'session-memory', flags['session-memory'], { min: 1, max: 65_536 }),
      quirks,
      upstream: engine.configs,
      engine: engine.info,
    }
    await using shards = await openGateway({ count, settings, logger })
    const app = createControlApp({
      gateway: shards,
      engine: { kind, url, continuation },
      token,
      host: flags['control-host'],
    })
    const server = createAdaptorServer({ fetch: app.fetch })
    await new Promise<void>((done, fail) => {
      server.on('error', (error: NodeJS.ErrnoException) => {
        const address = `${flags['control-host']}:${controlPort}`
        fail(
          new RolloutError('config.invalid', `The control API cannot listen on ${address} (${error.code}).`, {
            cause: error,
          }),
        )
      })
      server.listen(controlPort, flags['control-host'], done)
    })
    using _surviving = surviveErrors(logger)
    const { port } = server.address() as AddressInfo
    const host = isIPv6(flags['control-host']) ? `[${flags['control-host']}]` : flags['control-host']
    print(`http://${host}:${port}\n`)
    if (given === undefined) printError(`Token of the control API: ${controlTokenFile(dir)}\n`)
    const signal = await interrupted
    await new Promise((closed) => server.close(closed))
    return signal === 'SIGINT' ? EXIT.interrupted : EXIT.done
  },
})
