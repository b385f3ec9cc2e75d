import type * as z from 'zod'
import type { Route } from '../api/route.ts'
import type { Clock } from '../lib/async/clock.ts'
import { jitteredDelay } from '../lib/async/jittered-delay.ts'
import { failureClasses, RolloutError } from '../model/failure.ts'
import { mistrustOf, toServerError, unreachable } from './server-error.ts'

export interface ClientDeps {
  /** Without a slash at its end. */
  baseUrl: string
  /** Sent as a bearer token; absent for a server that asks for none. */
  token?: string
  /** The signal is given apart as well: the one of a request is lost once nobody has the request any more. */
  fetch: (request: Request, init: { signal?: AbortSignal }) => Promise<Response>
  clock: Clock
  /** Different each time, such as `crypto.randomUUID`. */
  newKey: () => string
  /** From 0 up to 1: spreads the retries of many callers. */
  random: () => number
  /** How often a call is tried in all, and how often in a row a stream is opened in vain. */
  attempts: number
  baseDelayMs: number
  maxDelayMs: number
}

/** A call before it is one: what is in it was checked by the compiler, and is again by the server. */
export interface Outgoing {
  params?: Readonly<Record<string, unknown>>
  query?: Readonly<Record<string, unknown>>
  body?: unknown
  signal?: AbortSignal
  headers?: Readonly<Record<string, string>>
  /** For routes that take one. Default: a new one for each call, the same for all of its tries. */
  idempotencyKey?: string
}

/** Sends, and has the answer read; again when that is safe and may help. */
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
    throw new RolloutError('server.bad-answer', `The server answered with what is not JSON: ${text.slice(0, 200)}`, {
      cause: error,
    })
  }
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const [issue] = parsed.error.issues
  const message = `The server answered with something else than its API says: ${issue?.path.join('.')}: ${issue?.message}`
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
    // What the compiler checked must not be changed on the way: a difference is a mistake of one of us.
    if (route.body.adapt !== undefined) headers.set('x-polar-strict', 'true')
    body = JSON.stringify(input.body)
  } else if (route.body?.kind === 'bytes') {
    headers.set('content-type', 'application/octet-stream')
    body = input.body as Uint8Array<ArrayBuffer>
  }
  // A redirect would take the token elsewhere, and a body sent on might be done twice.
  const init: RequestInit = { method: route.method.toUpperCase(), headers, redirect: 'error' }
  if (body !== undefined) init.body = body
  if (input.signal !== undefined) init.signal = input.signal
  return new Request(`${baseUrl}${path}${search}`, init)
}

/** A URL takes these two for the way up, however they are written, and would ask for something else. */
function toSegment(name: string, value: unknown): string {
  const text = String(value)
  if (text !== '' && text !== '.' && text !== '..' && text.isWellFormed()) return encodeURIComponent(text)
  throw new RolloutError('request.malformed', `${name} cannot be ${JSON.stringify(text)}.`, { param: `path.${name}` })
}

function toSearch(query: Outgoing['query'] = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one != null) search.append(name, String(one))
  }
  return search.size === 0 ? '' : `?${search.toString()}`
}

/** Either nothing was done, or doing it again changes nothing. */
export function mayRetry(route: Route, error: unknown): boolean {
  if (!(error instanceof RolloutError)) return false
  const { status, retryAfterSeconds } = error.failure
  if (mistrustOf(error.cause) !== undefined) return false
  if (status === 429) return retryAfterSeconds !== undefined
  if (error.code === 'server.unreachable' && wasNeverSent(error.cause)) return true
  return route.isIdempotent && failureClasses[error.code].retryable && status >= 502
}

const NEVER_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT'])

function wasNeverSent(error: unknown): boolean {
  const cause = error instanceof Error ? (error.cause as { code?: unknown } | undefined) : undefined
  return typeof cause?.code === 'string' && NEVER_SENT.has(cause.code)
}

/** Never sooner than the server asked for. */
export function delayBefore(
  attempt: number,
  error: unknown,
  { baseDelayMs, maxDelayMs, random }: Pick<ClientDeps, 'baseDelayMs' | 'maxDelayMs' | 'random'>,
): number {
  const usual = jitteredDelay(attempt, { baseMs: baseDelayMs, maxMs: maxDelayMs }, random())
  const asked = error instanceof RolloutError ? (error.failure.retryAfterSeconds ?? 0) * 1000 : 0
  return Math.max(asked, usual)
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
