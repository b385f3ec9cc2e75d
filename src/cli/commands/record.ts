import { access, constants, mkdir } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import pino from 'pino'
import { randomIds } from '../../lib/random-ids.ts'
import { RolloutError } from '../../model/failure.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { createCallLogStore } from '../../store/call-log/store.ts'
import { defineCommand, EXIT, usageError, type ExitCode } from '../command.ts'
import { openEngine } from '../open-engine.ts'
import { recordSession, type Recorded } from '../record-session.ts'
import { DEFAULT_OUT, formatCallTable, toSummary } from '../session-view.ts'

export const record = defineCommand({
  name: 'record',
  description: 'Run a harness and capture every model call it makes, with exact tokens.',
  rest: 'the command to run; it finds the gateway through OPENAI_BASE_URL and its like',
  flags: {
    upstream: { type: 'string', hint: 'URL', description: 'A running vLLM server; without it the tiny engine answers' },
    model: { type: 'string', hint: 'NAME', description: 'Model to ask the engine for; without it the first it serves' },
    out: { type: 'string', hint: 'DIR', description: 'Where sessions are written', default: DEFAULT_OUT },
    script: { type: 'string', hint: 'FILE', description: 'Turns for the tiny engine to play instead of its model' },
    'upstream-key': { type: 'string', hint: 'KEY', description: 'API key of the engine; or set POLAR_UPSTREAM_KEY' },
    'engine-log': { type: 'string', hint: 'FILE', description: 'Where the tiny engine writes what it did, to compare' },
    durability: {
      type: 'string',
      hint: 'KIND',
      choices: ['process', 'disk'],
      default: 'process',
      description: 'A stored turn survives the end of the process, or of the machine',
    },
    json: { type: 'boolean', description: 'Print the summary as JSON on standard output' },
    verbose: { type: 'boolean', description: 'Log what the gateway does' },
  },
  examples: [
    'polar record -- pi -p "What is in this folder?"',
    'polar record --upstream http://localhost:8000 --model Qwen/Qwen3-8B -- my-agent --task task.md',
  ],
  async run({ flags, rest }): Promise<ExitCode> {
    const [file, ...childArgs] = rest
    if (file === undefined) throw usageError('record', 'say what to run after --, as in: polar record -- pi -p "hello"')
    const dir = resolve(flags.out)
    await assertWritable(dir)
    const interrupted = new AbortController()
    const stop = (): void => interrupted.abort()
    process.on('SIGINT', stop).on('SIGTERM', stop)
    const now = Date.now
    await using engine = await openEngine({
      upstream: flags.upstream,
      model: flags.model,
      script: flags.script,
      engineLog: flags['engine-log'],
      upstreamKey: flags['upstream-key'] ?? process.env['POLAR_UPSTREAM_KEY'],
    })
    await using store = createCallLogStore({ dir, durability: flags.durability as 'process' | 'disk', now })
    const recorded = await recordSession({
      command: [file, ...childArgs],
      upstream: engine.upstream,
      engine: engine.info,
      store,
      reader: createCallLogReader({ dir }),
      ids: randomIds(now),
      now,
      logger: pino({ level: flags.verbose ? 'debug' : 'warn' }, pino.destination(2)),
      env: process.env,
      stdout: flags.json ? 'stderr' : 'inherit',
      signal: interrupted.signal,
    })
    process.off('SIGINT', stop).off('SIGTERM', stop)
    report(recorded, dir, flags.json)
    if (interrupted.signal.aborted) return EXIT.interrupted
    return recorded.exitCode === 0 && recorded.session.complete ? EXIT.done : EXIT.failed
  },
})

/** Better to say so now than after the agent has worked for an hour. */
async function assertWritable(dir: string): Promise<void> {
  try {
    await mkdir(dir, { recursive: true, mode: 0o700 })
    await access(dir, constants.W_OK | constants.X_OK)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const hint = 'Choose another place with --out DIR.'
    throw new RolloutError('config.invalid', `Sessions cannot be written to ${dir} (${code ?? message}). ${hint}`, {
      cause: error,
    })
  }
}

/** Standard output belongs to the harness, so people read this on standard error. */
function report({ session, exitCode, durationMs }: Recorded, dir: string, asJson: boolean): void {
  const path = join(dir, session.id)
  if (asJson) {
    process.stdout.write(
      `${JSON.stringify({ ...toSummary(session), path, exit_code: exitCode, duration_ms: durationMs })}\n`,
    )
    return
  }
  const lines = [
    '',
    session.turns.length === 0
      ? 'No model call reached the gateway. Does the harness read OPENAI_BASE_URL? Its config may name another URL.\n'
      : formatCallTable(session),
    `Session  ${session.id}  (${(durationMs / 1000).toFixed(1)} s, harness exit code ${exitCode})`,
    `Written  ${path}`,
    ...session.incompleteReasons.map((reason) => `INCOMPLETE  ${reason}`),
    `Read it  polar show ${session.id}${dir === resolve(DEFAULT_OUT) ? '' : ` --out ${dir}`}`,
    '',
  ]
  process.stderr.write(lines.join('\n'))
}
