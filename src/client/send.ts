import type * as z from 'zod'
import type { Route } from '../api/route.ts'
import type { Clock } from '../lib/async/clock.ts'
import { jitteredDelay } from '../lib/async/jittered-delay.ts'
import { failureClasses, RolloutError } from '../model/failure.ts'
import { certificateHint, toServerError, unreachable } from './server-error.ts'

export interface ClientDeps {
  /** Without a trailing slash. */
  baseUrl: string
  /** Bearer token; absent for a server without tokens. */
  token?: string
  /** The signal is also passed separately: a request's own signal is lost when the request is garbage collected. */
  fetch: (request: Request, init: { signal?: AbortSignal }) => Promise<Response>
  clock: Clock
  /** Returns a unique key, such as `crypto.randomUUID`. */
  newKey: () => string
  /** In [0, 1): spreads the retries of many clients. */
  random: () => number
  /** Maximum tries of a call, and maximum consecutive failures of a stream. */
  attempts: number
  baseDelayMs: number
  maxDelayMs: number
}

/** Input of a request; checked by the compiler, and validated by the server. */
export interface Outgoing {
  params?: Readonly<Record<string, unknown>>
  query?: Readonly<Record<string, unknown>>
  body?: unknown
  signal?: AbortSignal
  headers?: Readonly<Record<string, string>>
  /** For routes with `takesKey`. Default: a new key for each call. */
  idempotencyKey?: string
}

/** Sends the request and reads the response; retries where that is safe and may help. */
export async function send<T>(
  route: Route,
  input: Outgoing,
  deps: ClientDeps,
  read: (response: Response) => Promise<T>,
): Promise<T> {
  const keyed = route.takesKey === true ? withKey(input, deps.newKey()) : input
  for (let attempt = 1; ; attempt++) {
    input.signal?.throwIfAborted()
    try {
      return await sendOnce(route, keyed, deps, read)
    } catch (error) {
      input.signal?.throwIfAborted()
      if (attempt >= deps.attempts || !mayRetry(route, error)) throw error
      await pause(delayBefore(attempt, error, deps), input.signal, deps.clock)
    }
  }
}

function withKey(input: Outgoing, newKey: string): Outgoing {
  return { ...input, headers: { ...input.headers, 'idempotency-key': input.idempotencyKey ?? newKey } }
}

async function sendOnce<T>(
  route: Route,
  input: Outgoing,
  deps: ClientDeps,
  read: (response: Response) => Promise<T>,
): Promise<T> {
  const request = toRequest(route, input, deps)
  let response: Response
  try {
    response = await deps.fetch(request, input.signal === undefined ? {} : { signal: input.signal })
  } catch (error) {
    throw unreachable(request, error)
  }
  if (!response.ok) throw await toServerError(request, response)
  try {
    return await read(response)
  } catch (error) {
    throw error instanceof RolloutError ? error : unreachable(request, error)
  }
}

export async function readAnswer(schema: z.ZodType, response: Response): Promise<unknown> {
  return parseAnswer(schema, await response.text())
}

export function parseAnswer(schema: z.ZodType, text: string): unknown {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new RolloutError('server.bad-answer', `The response of the server is not JSON: ${text.slice(0, 200)}`, {
      cause: error,
    })
  }
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const [issue] = parsed.error.issues
  const message = `The response of the server does not match its API: ${issue?.path.join('.')}: ${issue?.message}`
  throw new RolloutError('server.bad-answer', message, { cause: parsed.error })
}

function toRequest(route: Route, input: Outgoing, { baseUrl, token }: ClientDeps): Request {
  const path = route.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => toSegment(name, input.params?.[name]))
  const search = toSearch(input.query)
  const headers = new Headers(input.headers)
  if (token !== undefined) headers.set('authorization', `Bearer ${token}`)
  let body: string | Uint8Array<ArrayBuffer> | undefined
  if (route.body?.kind === 'json') {
    headers.set('content-type', 'application/json')
    // The compiler has checked the body, so the server must not convert it: a difference is a bug.
    if (route.body.adapt !== undefined) headers.set('x-polar-strict', 'true')
    body = JSON.stringify(input.body)
  } else if (route.body?.kind === 'bytes') {
    headers.set('content-type', 'application/octet-stream')
    body = input.body as Uint8Array<ArrayBuffer>
  }
  // A redirect would send the token to another host, and might repeat the request.
  const init: RequestInit = { method: route.method.toUpperCase(), headers, redirect: 'error' }
  if (body !== undefined) init.body = body
  if (input.signal !== undefined) init.signal = input.signal
  return new Request(`${baseUrl}${path}${search}`, init)
}

/** URLs resolve the segments `.` and `..`, also percent-encoded, and would address another path. */
function toSegment(name: string, value: unknown): string {
  const text = String(value)
  if (text !== '' && text !== '.' && text !== '..' && text.isWellFormed()) return encodeURIComponent(text)
  throw new RolloutError('request.malformed', `${name} cannot be ${JSON.stringify(text)}.`, { param: `path.${name}` })
}

function toSearch(query: Outgoing['query'] = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) if (item != null) search.append(name, String(item))
  }
  return search.size === 0 ? '' : `?${search.toString()}`
}

/** Whether the request had no effect, or repeating it has none. */
export function mayRetry(route: Route, error: unknown): boolean {
  if (!(error instanceof RolloutError)) return false
  const { status, retryAfterSeconds } = error.failure
  if (certificateHint(error.cause) !== undefined) return false
  if (status === 429) return retryAfterSeconds !== undefined
  if (error.code === 'server.unreachable' && wasNeverSent(error.cause)) return true
  return route.isIdempotent && failureClasses[error.code].retryable && status >= 502
}

const NEVER_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT'])

function wasNeverSent(error: unknown): boolean {
  const cause = error instanceof Error ? (error.cause as { code?: unknown } | undefined) : undefined
  return typeof cause?.code === 'string' && NEVER_SENT.has(cause.code)
}

/** At least the server's `retry-after`. */
export function delayBefore(
  attempt: number,
  error: unknown,
  { baseDelayMs, maxDelayMs, random }: Pick<ClientDeps, 'baseDelayMs' | 'maxDelayMs' | 'random'>,
): number {
  const delay = jitteredDelay(attempt, { baseMs: baseDelayMs, maxMs: maxDelayMs }, random())
  const retryAfter = error instanceof RolloutError ? (error.failure.retryAfterSeconds ?? 0) * 1000 : 0
  return Math.max(retryAfter, delay)
}

export async function pause(ms: number, signal: AbortSignal | undefined, clock: Clock): Promise<void> {
  signal?.throwIfAborted()
  const { promise, resolve } = Promise.withResolvers<void>()
  const wake = (): void => resolve()
  const stop = clock.after(ms, wake)
  signal?.addEventListener('abort', wake)
  await promise
  stop()
  signal?.removeEventListener('abort', wake)
  signal?.throwIfAborted()
}
