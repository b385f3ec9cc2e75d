import type { Client } from '../../client/client.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { defineCommand, toggle, type ExitCode } from '../command.ts'
import {
  NODE_ENGINE_FLAGS,
  loadFromFlags,
  NODE_FLAGS,
  DATA_FLAGS,
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

export const command = defineCommand({
  name: 'up',
  description:
    'Start a server, a node, a gateway and an engine on this machine. Unfinished sessions continue at the next start.',
  flags: {
    ...DATA_FLAGS,
    port: SERVER_FLAGS.port,
    open: SERVER_FLAGS.open,
    ...NODE_FLAGS,
    ...NODE_ENGINE_FLAGS,
    json: toggle('Print the ready line as JSON, without progress bars'),
    verbose: VERBOSE_FLAG,
  },
  examples: [
    'polar up',
    'polar up --script examples/scripts/hello.yaml',
    'polar up --engine-url http://localhost:8000 --run 16',
  ],
  async run({ flags }): Promise<ExitCode> {
    // These variables select another server.
    const { POLAR_SERVER_URL: _, POLAR_TOKEN: __, POLAR_TOKEN_FILE: ___, ...env } = process.env
    const loaded = await loadFromFlags(flags, env)
    const { config } = loaded
    const out = createOutput()
    const logger = createLogger(config.log, out)
    let state = 'Starting: database and server…'
    using screen = createScreen(() => [`  ${state}`], flags.json ? QUIET : process.stderr)
    using stops = new DisposableStack()
    // Before the server is open, nothing is running and a signal ends the process at once: creating a database cannot be cancelled.
    let stop: StopSignals | undefined
    const opened = await openAll(loaded, {
      env,
      logger,
      onServer: () => {
        stop = stops.use(listenForStop({ twoSteps: true }))
        stops.use(surviveErrors(logger))
        stop.first.addEventListener('abort', () => (state = 'Stopping… Press Ctrl-C again to stop at once.'))
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
    printReady(server, ours, { asJson: flags.json, data: config.data, script: config.engine.script })
    {
      const counts = new SessionCounts(() => ours.worker.metrics.accepted)
      using view = createStageView({
        widths: ours.widths,
        metrics: () => ours.opened.node.metrics,
        progress: () => counts.progress(),
        stream: flags.json ? QUIET : undefined,
      })
      out.target = flags.json ? process.stderr : { write: (text: string) => view.print(text) }
      const ending = new AbortController()
      const signal = AbortSignal.any([stop.first, ending.signal])
      const watching = Promise.all([
        counts.watch(client, signal),
        flags.json ? undefined : printEnds(client, (line) => view.print(line), signal),
      ]).catch((error: unknown) => {
        if (!signal.aborted) logger.warn({ err: error }, 'cannot follow the progress of tasks')
      })
      await Promise.race([ours.worker.ended, untilAborted(stop.first)])
      ending.abort()
      await watching
      out.target = process.stderr
    }
    const left = ours.opened.node.sessions.length
    const back = left === 0 ? '' : ` ${left} sessions return to the queue; the next polar up continues them.`
    if (!flags.json && process.stderr.isTTY) printError(`Stopping.${back}\n`)
    await ours.worker.release()
    return exitCode(stop)
  },
})

/** Discards output. */
const QUIET = { isTTY: false, columns: 80, write: () => true }

function printReady(
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
  // On a terminal, standard error shows the URL.
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
    '  Press Ctrl-C to stop; unfinished sessions continue at the next start.',
    '',
  ]
  if (process.stderr.isTTY) printError(lines.map((line) => `${line}\n`).join(''))
}

/** Output of the logger. Its target changes while progress bars are shown. */
function createOutput(): { target: { write(text: string): unknown }; isTTY: boolean; write(text: string): void } {
  return {
    target: process.stderr,
    isTTY: process.stderr.isTTY,
    write(text) {
      this.target.write(text)
    },
  }
}

const POLL_MS = 1000

/** Counts the sessions whose results the server accepted since the start, and the open sessions. */
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
      note: this.#isIdle ? 'idle' : '',
    }
  }

  async watch(client: Client, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const { pipeline } = await client.getStatus({ signal })
      const open = pipeline.pending_sessions + pipeline.running_sessions
      this.#isIdle = open === 0
      this.#total = this.#accepted() + open
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, POLL_MS)
        signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true })
      })
    }
  }
}

/** Prints a line for each task that ends. */
async function printEnds(client: Client, printLine: (line: string) => void, signal: AbortSignal): Promise<void> {
  for await (const { data } of client.streamEvents({ signal })) {
    const { task_id: id } = data.data
    if (data.type !== 'task.completed' || typeof id !== 'string') continue
    const task = await findTask(client, id, signal)
    const failed = task.errored_sessions > 0 ? `, ${task.errored_sessions} failed` : ''
    printLine(
      `${task.status.padEnd(9)}  ${toVisibleLine(id)}  ${task.valid_sessions}/${task.num_samples} valid${failed}, mean reward ${formatReward(task.mean_reward)}\n`,
    )
  }
}
