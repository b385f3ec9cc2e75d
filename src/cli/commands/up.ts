import type { Client } from '../../client/client.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { defineCommand, type ExitCode } from '../command.ts'
import {
  NODE_ENGINE_FLAGS,
  loadFromFlags,
  NODE_FLAGS,
  PLACE_FLAGS,
  SERVER_FLAGS,
  VERBOSE_FLAG,
} from '../input/config-flags.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { openAll } from '../../compose/open-up.ts'
import type { OpenServer } from '../../compose/open-server.ts'
import type { OpenWorker } from '../../compose/open-worker.ts'
import { exampleLines } from '../views/next-steps.ts'
import { createScreen } from '../views/screen.ts'
import { createStageView } from '../views/stage-view.ts'
import { exitCode, listenForStop, type StopSignals } from '../stop-signals.ts'
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
    ...NODE_ENGINE_FLAGS,
    json: { type: 'boolean', description: 'Print the line that says it is ready as JSON, and no bars' },
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar up',
    'polar up --script examples/scripts/hello.yaml',
    'polar up --engine-url http://localhost:8000 --run 16',
  ],
  async run({ flags }): Promise<ExitCode> {
    // Those say which server to talk to; this one is its own.
    const { POLAR_SERVER_URL: _, POLAR_TOKEN: __, POLAR_TOKEN_FILE: ___, ...env } = process.env
    const loaded = await loadFromFlags(flags, env)
    const { config } = loaded
    const out = createOutput()
    const logger = createLogger(config.log, out)
    let state = 'Starting: database and server…'
    using screen = createScreen(() => [`  ${state}`], flags.json ? QUIET : process.stderr)
    const stops = new DisposableStack()
    using _stops = stops
    // Before the server is open, nothing is running and a signal ends the process at once: creating a database cannot be cancelled.
    let stop: StopSignals | undefined
    const opened = await openAll(loaded, {
      env,
      logger,
      onServer: () => {
        stop = stops.use(listenForStop({ twoSteps: true }))
        stops.use(surviveErrors(logger))
        stop.first.addEventListener('abort', () => (state = 'Ending… Ctrl-C again ends it at once.'))
        return stop.first
      },
      onStep: (part) => void (state = `Starting: ${part}…`),
    }).catch((error: unknown) => {
      if (stop?.first.aborted !== true) throw error
      return undefined
    })
    if (opened === undefined || stop === undefined) return exitCode(stop!)
    await using all = opened
    const { client, server, worker: ours } = all
    screen[Symbol.dispose]()
    for (const warning of ours.warnings) printError(`${warning}\n`)
    sayReady(server, ours, { asJson: flags.json, data: config.data, script: config.engine.script })
    {
      const counts = new SessionCounts(() => ours.worker.metrics.accepted)
      using view = createStageView({
        widths: ours.widths,
        metrics: () => ours.opened.node.metrics,
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
      await Promise.race([ours.worker.ended, untilAborted(stop.first)])
      ending.abort()
      await watching
      out.target = process.stderr
    }
    const left = ours.opened.node.sessions.length
    const back = left === 0 ? '' : ` ${left} sessions go back into the queue; the next polar up goes on with them.`
    if (!flags.json && process.stderr.isTTY) printError(`Ending.${back}\n`)
    await ours.worker.release()
    return exitCode(stop)
  },
})

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
