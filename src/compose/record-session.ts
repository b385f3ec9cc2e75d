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

/** A harness that is ready to start. Disposing it removes its prepared files. */
export interface PreparedHarness extends AsyncDisposable {
  command: readonly [string, ...string[]]
  /** Absent: the working directory of this process. */
  cwd?: string
  /** The whole environment of the harness. */
  env: Readonly<Record<string, string | undefined>>
  /** Text for standard input; absent: standard input of this process, for interactive use. */
  stdin?: string
}

export interface RecordOptions {
  /** Recorded in the log: the harness or command. */
  origin: Readonly<Record<string, unknown>>
  prepare(access: SessionAccess): Promise<PreparedHarness>
  upstream: Upstream
  /** Recorded in the log. */
  engine: { kind: string; url: string; model: string }
  continuation?: ContinuationMode
  quirks?: readonly QuirkRule[]
  store: SessionStore
  reader: SessionReader
  ids: IdSource
  now: () => number
  logger: Logger
  /** Destination of the harness's standard output. */
  stdout: 'inherit' | 'stderr'
  signal: AbortSignal
}

export interface Recorded {
  session: SessionRecord
  exitCode: number
  durationMs: number
}

/** Runs a harness with a gateway of its own, and returns the recorded session. */
export async function recordSession(options: RecordOptions): Promise<Recorded> {
  const { upstream, store, ids, now, logger } = options
  const { continuation, quirks } = options
  await using gateway = await Gateway.start({ upstream, store, ids, now, logger, continuation, quirks })
  const access = await gateway.openSession({ origin: { ...options.origin, engine: options.engine } })
  await using harness = await options.prepare(access)
  const startedAt = now()
  const exitCode = await runHarness(harness, options)
  const storeFailure = await gateway.closeSession(access.id)
  const session = await options.reader.load(access.id)
  // A failure to store, such as a full disk, is not in the stored log.
  if (storeFailure) session.incompleteReasons.unshift(storeFailure.message)
  return { session, exitCode, durationMs: now() - startedAt }
}

async function runHarness(
  harness: PreparedHarness,
  options: Pick<RecordOptions, 'stdout' | 'signal'>,
): Promise<number> {
  const [file, ...args] = harness.command
  // A non-interactive harness gets its own process group, so that its child processes can be killed with it. A harness that
  // reads the terminal must stay in the foreground process group.
  const isDetached = harness.stdin !== undefined
  const child = spawn(file, args, {
    cwd: harness.cwd,
    env: { ...harness.env },
    detached: isDetached,
    stdio: [isDetached ? 'pipe' : 'inherit', options.stdout === 'inherit' ? 'inherit' : 2, 'inherit'],
  })
  // The harness may exit before it has read all its input.
  child.stdin?.on('error', () => {})
  child.stdin?.end(harness.stdin)
  const stop = (): void => stopChild(child, isDetached)
  options.signal.addEventListener('abort', stop)
  if (options.signal.aborted) stop()
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', (error: NodeJS.ErrnoException) => {
        const hint = error.code === 'ENOENT' ? 'the program is not in PATH' : error.message
        reject(new RolloutError('harness.not-found', `Cannot start "${file}": ${hint}.`, { cause: error }))
      })
      // Like a shell, report 128 + n for a program that signal n ended.
      child.once('exit', (code, signal) => resolve(code ?? 128 + (signal === null ? 0 : constants.signals[signal])))
    })
  } finally {
    options.signal.removeEventListener('abort', stop)
    if (isDetached) signalTo(child, 'SIGKILL', isDetached)
  }
}

/** Sends SIGTERM, and SIGKILL after 5 s. */
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
