import { createClient, type Client } from '../../client/client.ts'
import type { Config } from '../../config/config.ts'
import { usualNodeId } from '../../config/node-section.ts'
import { OwnAddresses } from '../../lib/net/own-addresses.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { mayActFor } from '../../server/listen/node-pattern.ts'
import { defineCommand, type ExitCode } from '../command.ts'
import {
  ENGINE_FLAGS,
  loadFromFlags,
  NODE_FLAGS,
  PLACE_FLAGS,
  SERVER_FLAGS,
  VERBOSE_FLAG,
} from '../input/config-flags.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { openServer, type OpenServer } from '../../compose/open-server.ts'
import { openWorker, type OpenWorker } from '../../compose/open-worker.ts'
import { exampleLines } from '../views/next-steps.ts'
import { createScreen } from '../views/screen.ts'
import { createStageView } from '../views/stage-view.ts'
import { exitCode, listenForStop } from '../stop-signals.ts'
import { surviveErrors } from '../../compose/survive-errors.ts'
import { untilAborted } from '../../lib/async/until-aborted.ts'
import { findTask } from '../task/find-task.ts'
import { formatReward } from '../views/task-view.ts'
import { print, printError, printJson } from '../views/print.ts'

export const up = defineCommand({
  name: 'up',
  description:
    'Server, node, gateway and engine with one command, on this machine; what is under way survives its end.',
  flags: {
    ...PLACE_FLAGS,
    port: SERVER_FLAGS.port,
    open: SERVER_FLAGS.open,
    ...NODE_FLAGS,
    ...ENGINE_FLAGS,
    json: { type: 'boolean', description: 'Print the line that says it is ready as JSON, and no bars' },
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar up',
    'polar up --script examples/scripts/hello.yaml',
    'polar up --upstream http://localhost:8000 --run 16',
  ],
  async run({ flags }): Promise<ExitCode> {
    // Those say which server to talk to; this one is its own.
    const { POLAR_SERVER_URL: _, POLAR_TOKEN: __, POLAR_TOKEN_FILE: ___, ...env } = process.env
    const loaded = await loadFromFlags(flags, env)
    const { config } = loaded
    assertNodeToken(config)
    const out = createOutput()
    const logger = createLogger(config.log, out)
    let state = 'Starting: database and server…'
    using screen = createScreen(() => [`  ${state}`], flags.json ? QUIET : process.stderr)
    // Nothing is under way yet, and a database that is being made can be left at any moment, but not be told to stop: until
    // it is there, whoever asks for the end gets it as from any other process.
    const own = new OwnAddresses()
    const server = await openServer(loaded, { env, logger, own })
    using stop = listenForStop({ twoSteps: true })
    using _surviving = surviveErrors(logger)
    await using parts = new AsyncDisposableStack()
    parts.use(server)
    // Somebody who sees no change would think that it was not heard.
    stop.first.addEventListener('abort', () => (state = 'Ending… Ctrl-C again ends it at once.'))
    // A certificate is made out to a name, not to an address of this machine.
    const connection = {
      url: config.server.tls === undefined ? server.localUrl : server.url,
      token: server.tokens?.node,
    }
    const opened = await openWorker({
      config,
      server: connection,
      isOwnMachine: true,
      own,
      env,
      logger,
      signal: stop.first,
      onStep: (what) => void (state = `Starting: ${what}…`),
    }).catch((error: unknown) => {
      if (!stop.first.aborted) throw error
      return undefined
    })
    if (opened === undefined) return exitCode(stop)
    screen[Symbol.dispose]()
    parts.use(opened)
    for (const warning of opened.warnings) printError(`${warning}\n`)
    sayReady(server, opened, { asJson: flags.json, data: config.data, script: config.engine.script })
    const client = createClient({
      baseUrl: connection.url,
      ...(server.tokens?.trainer === undefined ? {} : { token: server.tokens.trainer }),
    })
    {
      const counts = new SessionCounts(() => opened.worker.metrics.accepted)
      using view = createStageView({
        widths: opened.widths,
        metrics: () => opened.opened.node.metrics,
        progress: () => counts.progress(),
        ...(flags.json ? { stream: QUIET } : {}),
      })
      out.target = flags.json ? process.stderr : { write: (text: string) => view.print(text) }
      const ending = new AbortController()
      const signal = AbortSignal.any([stop.first, ending.signal])
      const watching = Promise.all([
        counts.watch(client, signal),
        flags.json ? undefined : tellEnds(client, (line) => view.print(line), signal),
      ]).catch((error: unknown) => {
        if (!signal.aborted) logger.warn({ err: error }, 'what happens cannot be shown any more')
      })
      await Promise.race([opened.worker.ended, untilAborted(stop.first)])
      ending.abort()
      await watching
      out.target = process.stderr
    }
    const left = opened.opened.node.sessions.length
    const back = left === 0 ? '' : ` ${left} sessions go back into the queue; the next polar up goes on with them.`
    if (!flags.json && process.stderr.isTTY) printError(`Ending.${back}\n`)
    await opened.worker.release()
    return exitCode(stop)
  },
})

function assertNodeToken({ server: { tokens }, node }: Config): void {
  if (tokens.length === 0) return
  const ofNodes = tokens.filter(({ scopes }) => scopes.includes('node'))
  const nodeId = node.id ?? usualNodeId()
  if (ofNodes.some(({ nodes }) => mayActFor(nodes, nodeId))) return
  const why =
    ofNodes.length === 0
      ? 'none has the scope node, which the node of polar up needs.'
      : `none with the scope node is for ${nodeId}, which is what the node of polar up is called; see node.id.`
  throw new RolloutError('config.invalid', `server.tokens: ${why}`)
}

/** Nobody looks. */
const QUIET = { isTTY: false, columns: 80, write: () => true }

function sayReady(
  { url, tokens }: OpenServer,
  { nodeId, opened }: OpenWorker,
  { asJson, data, script }: { asJson: boolean; data: string; script: string | undefined },
): void {
  if (asJson) {
    const ready = {
      event: 'ready',
      url,
      node_id: nodeId,
      dir: data,
      tokens_file: tokens?.file ?? null,
      pid: process.pid,
    }
    printJson(ready)
    return
  }
  // Where both are the same screen, once is enough.
  if (!(process.stdout.isTTY && process.stderr.isTTY)) print(`${url}\n`)
  const lines = [
    '',
    `  Server   ${url}`,
    ...(tokens?.file === undefined ? [] : [`  Tokens   ${tokens.file}`]),
    `  Node     ${nodeId}, sandboxes by ${opened.runtime}`,
    `  Data     ${data}`,
    '',
    '  In another terminal:',
    ...exampleLines(data, script),
    '',
    '  Ctrl-C ends it; what is under way goes on the next time.',
    '',
  ]
  if (process.stderr.isTTY) printError(lines.map((line) => `${line}\n`).join(''))
}

/** Where the logger writes, which changes once there are bars. */
function createOutput(): { target: { write(text: string): unknown }; isTTY: boolean; write(text: string): void } {
  return {
    target: process.stderr,
    isTTY: process.stderr.isTTY,
    write(text) {
      this.target.write(text)
    },
  }
}

const LOOK_MS = 1000

/** Sessions whose results the server has from us since we started, and those that are still to do. */
class SessionCounts {
  readonly #accepted: () => number
  #total = 0
  #isIdle = true

  constructor(accepted: () => number) {
    this.#accepted = accepted
  }

  progress(): { done: number; total: number; note: string } {
    return {
      done: Math.min(this.#accepted(), this.#total),
      total: this.#total,
      note: this.#isIdle ? 'nothing to do' : '',
    }
  }

  async watch(client: Client, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const { pipeline } = await client.getStatus({ signal })
      const open = pipeline.pending_sessions + pipeline.running_sessions
      this.#isIdle = open === 0
      this.#total = this.#accepted() + open
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, LOOK_MS)
        signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true })
      })
    }
  }
}

/** A line for each task that is over. */
async function tellEnds(client: Client, tell: (line: string) => void, signal: AbortSignal): Promise<void> {
  for await (const { data } of client.streamEvents({ signal })) {
    const { task_id: id } = data.data
    if (data.type !== 'task.completed' || typeof id !== 'string') continue
    const task = await findTask(client, id, signal)
    const failed = task.errored_sessions > 0 ? `, ${task.errored_sessions} failed` : ''
    tell(
      `${task.status.padEnd(9)}  ${toVisibleLine(id)}  ${task.valid_sessions}/${task.num_samples} valid${failed}, mean reward ${formatReward(task.mean_reward)}\n`,
    )
  }
}
