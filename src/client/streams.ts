import type { AnswerBody, Route } from '../api/route.ts'
import { SseParser } from '../lib/net/sse.ts'
import { RolloutError } from '../model/failure.ts'
import { type ClientDeps, delayBefore, type Outgoing, mayRetry, parseAnswer, pause, send } from './send.ts'

export interface ServerSentEvent<Data> {
  /** Absent for an event without a position, such as a ping. */
  id?: string
  data: Data
}

type AnswerOf<Kind> = Extract<AnswerBody, { kind: Kind }>

/** The server sends a ping every 15 s; a connection without data for this time is dead. */
const MAX_SILENCE_MS = 60_000

/** Never ends by itself: reconnects after the last event when the server ends the stream. */
export async function* readEvents(
  route: Route,
  { schema }: AnswerOf<'sse'>,
  input: Outgoing,
  deps: ClientDeps,
): AsyncGenerator<ServerSentEvent<unknown>, void, undefined> {
  let lastId: string | undefined
  for (let failures = 0; ;) {
    const headers: Record<string, string> = lastId === undefined ? {} : { 'last-event-id': lastId }
    try {
      const parser = new SseParser()
      for await (const chunk of readChunks(route, { ...input, headers }, deps, MAX_SILENCE_MS)) {
        for (const { id, data } of parser.push(chunk)) {
          input.signal?.throwIfAborted()
          const event = parseAnswer(schema, data)
          failures = 0
          if (id !== undefined) lastId = id
          yield id === undefined ? { data: event } : { id, data: event }
        }
      }
      throw cut(route)
    } catch (error) {
      failures = await waitAfter(error, failures, route, input, deps)
    }
  }
}

/** Resumes after the last complete line. Ends when the server has sent all lines. */
export async function* readLines(
  route: Route,
  { schema, resumeBy }: AnswerOf<'ndjson'>,
  input: Outgoing,
  deps: ClientDeps,
): AsyncGenerator<unknown, void, undefined> {
  let skip = Number(input.query?.[resumeBy] ?? 0)
  for (let failures = 0; ;) {
    try {
      const query = { ...input.query, [resumeBy]: skip }
      let rest = ''
      const decoder = new TextDecoder()
      for await (const chunk of readChunks(route, { ...input, query }, deps)) {
        const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
        rest = lines.pop() ?? ''
        for (const line of lines) {
          input.signal?.throwIfAborted()
          const value = parseAnswer(schema, line)
          failures = 0
          skip += 1
          yield value
        }
      }
      if (rest === '') return
      throw cut(route)
    } catch (error) {
      failures = await waitAfter(error, failures, route, input, deps)
    }
  }
}

/** Returns the number of consecutive failures; throws if a retry is not useful. */
async function waitAfter(
  error: unknown,
  failures: number,
  route: Route,
  { signal }: Outgoing,
  deps: ClientDeps,
): Promise<number> {
  signal?.throwIfAborted()
  const next = failures + 1
  if (next >= deps.attempts || !mayRetry(route, error)) throw error
  await pause(delayBefore(next, error, deps), signal, deps.clock)
  return next
}

/** Reads one connection; leaving the loop closes it. Throws `server.unreachable` if it ends early. */
async function* readChunks(
  route: Route,
  input: Outgoing,
  deps: ClientDeps,
  silenceMs?: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  const silence = new AbortController()
  const signals = input.signal === undefined ? [silence.signal] : [input.signal, silence.signal]
  let stopTimer: (() => void) | undefined
  const restartTimer = (): void => {
    stopTimer?.()
    if (silenceMs !== undefined) stopTimer = deps.clock.after(silenceMs, () => silence.abort(cut(route)))
  }
  try {
    // The caller retries, because it knows where to resume the stream.
    const once = { ...deps, attempts: 1 }
    const { body } = await send(
      route,
      { ...input, signal: AbortSignal.any(signals) },
      once,
      async (response) => response,
    )
    if (body === null) return
    restartTimer()
    for await (const chunk of body) {
      restartTimer()
      yield chunk
    }
  } catch (error) {
    input.signal?.throwIfAborted()
    throw error instanceof RolloutError ? error : cut(route, error)
  } finally {
    stopTimer?.()
  }
}

function cut(route: Route, cause?: unknown): RolloutError {
  return new RolloutError('server.unreachable', `The stream of ${route.path} ended too early.`, { cause })
}
