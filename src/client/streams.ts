import type { AnswerBody, Route } from '../api/route.ts'
import { SseParser } from '../lib/net/sse.ts'
import { RolloutError } from '../model/failure.ts'
import { type ClientDeps, delayBefore, type Outgoing, mayRetry, parseAnswer, pause, send } from './send.ts'

export interface ServerSentEvent<Data> {
  /** Absent for an event that has no place in the order, such as a ping. */
  id?: string
  data: Data
}

type AnswerOf<Kind> = Extract<AnswerBody, { kind: Kind }>

/** The server says something every 15 s; a connection that is silent for longer is one that nobody told us has ended. */
const LONGEST_SILENCE_MS = 60_000

/** Never ends by itself: a server that ends it is asked again, for what came after the last event. */
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
      for await (const chunk of readChunks(route, { ...input, headers }, deps, LONGEST_SILENCE_MS)) {
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

/** A line that has come whole is not asked for again. Ends when the server has sent all. */
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

/** How many failures in a row that makes; throws where another try is of no use. */
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

/** One connection. Leaving the loop closes it; whatever ends it early is `server.unreachable`. */
async function* readChunks(
  route: Route,
  input: Outgoing,
  deps: ClientDeps,
  silenceMs?: number,
): AsyncGenerator<Uint8Array, void, undefined> {
  const silence = new AbortController()
  const signals = input.signal === undefined ? [silence.signal] : [input.signal, silence.signal]
  let stopTimer: (() => void) | undefined
  const heard = (): void => {
    stopTimer?.()
    if (silenceMs !== undefined) stopTimer = deps.clock.after(silenceMs, () => silence.abort(cut(route)))
  }
  try {
    // Trying again is for whoever knows where the stream is to go on.
    const once = { ...deps, attempts: 1 }
    const { body } = await send(route, { ...input, signal: AbortSignal.any(signals) }, once, async (answer) => answer)
    if (body === null) return
    heard()
    for await (const chunk of body) {
      heard()
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
  return new RolloutError('server.unreachable', `The stream of ${route.path} was cut before its end.`, { cause })
}
