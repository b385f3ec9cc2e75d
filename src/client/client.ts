import { systemClock } from '../lib/async/clock.ts'
import {
  type Answer,
  type BodyInput,
  type ParamsInput,
  type QueryInput,
  type Route,
  type RouteTable,
} from '../api/route.ts'
import { type Routes, routes } from '../api/routes/index.ts'
import { type ClientDeps, type Outgoing, readAnswer, send } from './send.ts'
import { readEvents, readLines, type ServerSentEvent } from './streams.ts'

export interface ClientOptions extends Partial<Omit<ClientDeps, 'baseUrl'>> {
  /** Where the server is; a path in it goes before those of the routes. */
  baseUrl: string
}

/** What one call takes. A part is there when its route has one, and may be left out when all in it may. */
export type CallInput<R extends Route> = Part<'params', ParamsInput<R>> &
  Part<'query', QueryInput<R>> &
  Part<'body', BodyInput<R>> & {
    /** Ends the call, its retries and its stream; what is thrown then is the signal's reason. */
    signal?: AbortSignal
    /**
     * For routes that take one, such as `submitTask`: calls with the same key are one call. Default: a new one for each
     * call, the same for all of its tries.
     */
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
      /** Goes on where it was cut. */
      ndjson: AsyncGenerator<Answer<R>, void, undefined>
      /** Connects again whenever it ends, from the last event on. */
      sse: AsyncGenerator<ServerSentEvent<Answer<R>>, void, undefined>
      bytes: Promise<ReadableStream<Uint8Array>>
    }[Kind & ('json' | 'ndjson' | 'sse' | 'bytes')]
  : never

type CallOf<R extends Route> =
  Partial<CallInput<R>> extends CallInput<R>
    ? (input?: CallInput<R>) => CallAnswer<R>
    : (input: CallInput<R>) => CallAnswer<R>

export type ClientOf<Table extends RouteTable> = { [Name in keyof Table]: CallOf<Table[Name]> }

/** The rollout server, one function a route. Failures are `RolloutError`s with the server's own code. */
export type Client = ClientOf<Routes>

export function createClient(options: ClientOptions): Client {
  return createClientOf(routes, options)
}

/** The same for any table of routes. */
export function createClientOf<Table extends RouteTable>(table: Table, options: ClientOptions): ClientOf<Table> {
  const deps: ClientDeps = {
    // Looked up at each call, as others may put theirs in its place.
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
  // Each entry is its route's own function; that a loop made them is what the compiler cannot follow.
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
