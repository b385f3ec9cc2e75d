import { spawn, type ChildProcess } from 'node:child_process'
import { constants } from 'node:os'
import type { Logger } from 'pino'
import { Gateway, type SessionAccess } from '../gateway/gateway.ts'
import type { Upstream } from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'
import type { IdSource } from '../model/ids.ts'
import type { SessionRecord } from '../model/session.ts'
import type { SessionReader, SessionStore } from '../store/store.ts'

export interface RecordOptions {
  command: readonly [string, ...string[]]
  upstream: Upstream
  /** For the log: where the model answers, and which. */
  engine: { kind: string; url: string; model: string }
  store: SessionStore
  reader: SessionReader
  ids: IdSource
  now: () => number
  logger: Logger
  /** The environment the harness gets, with our variables on top. */
  env: Readonly<Record<string, string | undefined>>
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
  await using gateway = await Gateway.start({ upstream, store, ids, now, logger })
  const access = await gateway.openSession({ origin: { command: options.command, engine: options.engine } })
  const startedAt = now()
  const exitCode = await runChild(options, { ...options.env, ...harnessEnv(access, options.engine.model) })
  const broken = await gateway.closeSession(access.id)
  const session = await options.reader.load(access.id)
  // A full disk had no room to say so.
  if (broken) session.incompleteReasons.unshift(broken.message)
  return { session, exitCode, durationMs: now() - startedAt }
}

/** Every name by which a provider's SDK or CLI looks for its base URL and key. */
export function harnessEnv(access: SessionAccess, model: string): Record<string, string> {
  const { baseUrl, key } = access
  return {
    OPENAI_BASE_URL: `${baseUrl}/v1`,
    OPENAI_API_BASE: `${baseUrl}/v1`,
    OPENAI_API_KEY: key,
    OPENAI_MODEL: model,
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_MODEL: model,
    GOOGLE_GEMINI_BASE_URL: baseUrl,
    GEMINI_API_KEY: key,
    GOOGLE_API_KEY: key,
    GEMINI_MODEL: model,
    POLAR_SESSION_ID: access.id,
    POLAR_BASE_URL: baseUrl,
    POLAR_API_KEY: key,
    POLAR_MODEL: model,
  }
}

async function runChild(options: RecordOptions, env: Record<string, string | undefined>): Promise<number> {
  const [file, ...args] = options.command
  const child = spawn(file, args, { env, stdio: ['inherit', options.stdout === 'inherit' ? 'inherit' : 2, 'inherit'] })
  const stop = (): void => stopChild(child)
  options.signal.addEventListener('abort', stop)
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', (error: NodeJS.ErrnoException) => {
        const hint = error.code === 'ENOENT' ? 'there is no such program in PATH' : error.message
        reject(new RolloutError('harness.not-found', `Cannot start "${file}": ${hint}.`, { cause: error }))
      })
      // As shells report it: a program ended by signal n exits with 128 + n.
      child.once('close', (code, signal) => resolve(code ?? 128 + (signal === null ? 0 : constants.signals[signal])))
    })
  } finally {
    options.signal.removeEventListener('abort', stop)
  }
}

/** Asks first; a harness that does not listen is ended. */
function stopChild(child: ChildProcess): void {
  child.kill('SIGTERM')
  setTimeout(() => child.kill('SIGKILL'), 5000).unref()
}
