import {
  type Answer,
  type BodyInput,
  type ParamsInput,
  type QueryInput,
  type Route,
  type RouteTable,
} from '../api/route.ts'
import { type Routes, routes } from '../api/routes/index.ts'
import { systemClock } from '../lib/async/clock.ts'
import { type ClientDeps, type Outgoing, readAnswer, send } from './send.ts'
import { readEvents, readLines, type ServerSentEvent } from './streams.ts'

export interface ClientOptions extends Partial<Omit<ClientDeps, 'baseUrl'>> {
  /** URL of the server; its path is a prefix of all routes. */
  baseUrl: string
}

/** Input of a call: the parts that its route has; a part is optional if all its fields are. */
export type CallInput<R extends Route> = Part<'params', ParamsInput<R>> &
  Part<'query', QueryInput<R>> &
  Part<'body', BodyInput<R>> & {
    /** Ends the call, its retries and its stream with the signal's reason. */
    signal?: AbortSignal
    /** For routes with `takesKey`, such as `submitTask`: calls with the same key are one call. Default: a new key for each call. */
    idempotencyKey?: string
  }

type Part<Name extends string, Value> = [Value] extends [undefined]
  ? { [N in Name]?: undefined }
  : Partial<Value> extends Value
    ? { [N in Name]?: Value }
    : { [N in Name]: Value }

export type CallAnswer<R extends Route> = R['answer'] extends { kind: infer Kind }
  ? {
      json: Promise<Answer<R>>
      /** Resumes after a lost connection. */
      ndjson: AsyncGenerator<Answer<R>, void, undefined>
      /** Reconnects whenever the stream ends, after the last event. */
      sse: AsyncGenerator<ServerSentEvent<Answer<R>>, void, undefined>
      bytes: Promise<ReadableStream<Uint8Array>>
    }[Kind & ('json' | 'ndjson' | 'sse' | 'bytes')]
  : never

type CallOf<R extends Route> =
  Partial<CallInput<R>> extends CallInput<R>
    ? (input?: CallInput<R>) => CallAnswer<R>
    : (input: CallInput<R>) => CallAnswer<R>

export type ClientOf<Table extends RouteTable> = { [Name in keyof Table]: CallOf<Table[Name]> }

/** Client of the rollout server, one function per route. Throws `RolloutError` with the server's failure code. */
export type Client = ClientOf<Routes>

export function createClient(options: ClientOptions): Client {
  return createClientOf(routes, options)
}

/** Creates a client for any route table. */
export function createClientOf<Table extends RouteTable>(table: Table, options: ClientOptions): ClientOf<Table> {
  const deps: ClientDeps = {
    // Reads the global at each call: programs may replace it.
    fetch: (request, init) => fetch(request, init),
    clock: systemClock,
    random: Math.random,
    newKey: () => crypto.randomUUID(),
    attempts: 5,
    baseDelayMs: 200,
    maxDelayMs: 5000,
    ...options,
    baseUrl: options.baseUrl.replace(/\/+$/, ''),
  }
  const calls = Object.entries(table).map(([name, route]) => [name, (input: Outgoing = {}) => call(route, input, deps)])
  // The cast is safe: each entry has the type of its route, which the compiler cannot follow through the loop.
  return Object.fromEntries(calls) as ClientOf<Table>
}

function call(route: Route, input: Outgoing, deps: ClientDeps): unknown {
  const { answer } = route
  switch (answer.kind) {
    case 'json':
      return send(route, input, deps, (response) => readAnswer(answer.schema, response))
    case 'bytes':
      return send(route, input, deps, async (response) => response.body ?? new Blob([]).stream())
    case 'ndjson':
      return readLines(route, answer, input, deps)
    case 'sse':
      return readEvents(route, answer, input, deps)
  }
}
