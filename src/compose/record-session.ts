import { spawn, type ChildProcess } from 'node:child_process'
import { constants } from 'node:os'
import type { Logger } from 'pino'
import { Gateway, type SessionAccess } from '../gateway/gateway.ts'
import type { QuirkRule } from '../gateway/quirks/rule.ts'
import type { ContinuationMode } from '../gateway/sessions/sessions.ts'
import type { Upstream } from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { SessionRecord } from '../model/session.ts'
import type { SessionReader, SessionStore } from '../store/store.ts'

/** A harness that is ready to start. Disposing of it takes away what was prepared for it. */
export interface PreparedHarness extends AsyncDisposable {
  command: readonly [string, ...string[]]
  /** Absent: ours. */
  cwd?: string
  /** All it gets. */
  env: Readonly<Record<string, string | undefined>>
  /** Its standard input; absent: ours, so that a person can talk to it. */
  stdin?: string
}

export interface RecordOptions {
  /** For the log: what runs. */
  origin: Readonly<Record<string, unknown>>
  prepare(access: SessionAccess): Promise<PreparedHarness>
  upstream: Upstream
  /** For the log: where the model answers, and which. */
  engine: { kind: string; url: string; model: string }
  continuation?: ContinuationMode
  quirks?: readonly QuirkRule[]
  store: SessionStore
  reader: SessionReader
  ids: IdSource
  now: () => number
  logger: Logger
  /** Where the harness's standard output goes. */
  stdout: 'inherit' | 'stderr'
  signal: AbortSignal
}

export interface Recorded {
  session: SessionRecord
  exitCode: number
  durationMs: number
}

/** Runs one harness against a gateway of its own, and gives back what was captured. */
export async function recordSession(options: RecordOptions): Promise<Recorded> {
  const { upstream, store, ids, now, logger } = options
  const { continuation, quirks } = options
  await using gateway = await Gateway.start({ upstream, store, ids, now, logger, continuation, quirks })
  const access = await gateway.openSession({ origin: { ...options.origin, engine: options.engine } })
  await using harness = await options.prepare(access)
  const startedAt = now()
  const exitCode = await runHarness(harness, options)
  const broken = await gateway.closeSession(access.id)
  const session = await options.reader.load(access.id)
  // A full disk had no room to say so.
  if (broken) session.incompleteReasons.unshift(broken.message)
  return { session, exitCode, durationMs: now() - startedAt }
}

async function runHarness(
  harness: PreparedHarness,
  options: Pick<RecordOptions, 'stdout' | 'signal'>,
): Promise<number> {
  const [file, ...args] = harness.command
  // One that nobody talks to gets a process group, by which all that it starts can be ended with it. One that reads the
  // terminal must stay in ours, or the terminal would stop it.
  const isAlone = harness.stdin !== undefined
  const child = spawn(file, args, {
    cwd: harness.cwd,
    env: { ...harness.env },
    detached: isAlone,
    stdio: [isAlone ? 'pipe' : 'inherit', options.stdout === 'inherit' ? 'inherit' : 2, 'inherit'],
  })
  // It may end without having read all of its input.
  child.stdin?.on('error', () => {})
  child.stdin?.end(harness.stdin)
  const stop = (): void => stopChild(child, isAlone)
  options.signal.addEventListener('abort', stop)
  if (options.signal.aborted) stop()
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', (error: NodeJS.ErrnoException) => {
        const hint = error.code === 'ENOENT' ? 'there is no such program in PATH' : error.message
        reject(new RolloutError('harness.not-found', `Cannot start "${file}": ${hint}.`, { cause: error }))
      })
      // As shells report it: a program ended by signal n exits with 128 + n.
      child.once('exit', (code, signal) => resolve(code ?? 128 + (signal === null ? 0 : constants.signals[signal])))
    })
  } finally {
    options.signal.removeEventListener('abort', stop)
    if (isAlone) signalTo(child, 'SIGKILL', isAlone)
  }
}

/** Asks first; a harness that does not listen is ended. */
function stopChild(child: ChildProcess, isGroup: boolean): void {
  signalTo(child, 'SIGTERM', isGroup)
  setTimeout(() => signalTo(child, 'SIGKILL', isGroup), 5000).unref()
}

function signalTo(child: ChildProcess, signal: NodeJS.Signals, isGroup: boolean): void {
  if (!isGroup || child.pid === undefined) {
    child.kill(signal)
    return
  }
  try {
    process.kill(-child.pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
