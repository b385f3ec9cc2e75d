import { type Context, Hono } from 'hono'
import { RolloutError, toFailure } from '../model/failure.ts'
import { toErrorBody } from './error-body.ts'
import { InvalidRequest, readCall } from './read-call.ts'
import { type Reply, renderReply } from './render-reply.ts'
import type { Body, Params, Query, Route, RouteTable } from './route.ts'

/** An authorized and validated request. */
export interface Call<R extends Route, Caller> {
  params: Params<R>
  query: Query<R>
  body: Body<R>
  /** Conversions of the body, for the response. */
  warnings: readonly string[]
  /** The same for all tries of one request; undefined if the client sent none. */
  idempotencyKey: string | undefined
  /** Result of `authorize`. */
  caller: Caller
  /** Throws `request.forbidden` if the caller may not act for this node. For bodies that the handler parses itself. */
  authorizeNode: (nodeId: string | undefined) => void
  /** Aborted when the client disconnects, also during a streamed response. */
  signal: AbortSignal
}

export type Handlers<Table extends RouteTable, Caller> = {
  [Name in keyof Table]: (call: Call<Table[Name], Caller>) => Promise<Reply<Table[Name]>>
}

export interface MountOptions<Table extends RouteTable, Caller> {
  table: Table
  handlers: Handlers<Table, Caller>
  /** Called before the request is parsed. Throws `request.unauthorized` or `request.forbidden`. */
  authorize: (request: Request, route: Route) => Promise<Caller> | Caller
  /** Called for each node that the request acts for; the node in the path before the body is read. Throws `request.forbidden`. */
  authorizeNode?: (caller: Caller, route: Route, nodeId: string | undefined) => void
  /** Called with errors that no handler should throw; the client gets no details. */
  onBug: (error: unknown, route: Route | undefined) => void
  /** Called for each request; the returned function is called when the response begins. For a log. */
  onRequest?: (request: Request, route: Route) => (answered: Answered<Caller>) => void
  /** For tests: validates the responses of handlers against the schemas. */
  checkAnswers?: boolean
}

export interface Answered<Caller> {
  status: number
  /** Absent if the request was not authorized. */
  caller?: Caller
  error?: unknown
}

/** Creates the app: validates every request before its handler runs, and renders every error as ErrorBody. */
export function mountRoutes<Table extends RouteTable, Caller>(options: MountOptions<Table, Caller>): Hono {
  const app = new Hono()
  const methodsByPath = new Map<string, string[]>()
  for (const [name, route] of Object.entries(options.table)) {
    const path = toHonoPath(route.path)
    const method = route.method.toUpperCase()
    methodsByPath.set(path, [...(methodsByPath.get(path) ?? []), method])
    // The types of table and handlers match by name, which the compiler cannot follow through the loop.
    const handler = options.handlers[name] as unknown as (call: unknown) => Promise<Reply<Route>>
    app.on(method, path, (c) => answer(c, route, handler, options as unknown as AnyOptions))
  }
  for (const [path, methods] of methodsByPath) {
    app.all(path, (c) => {
      c.header('allow', methods.join(', '))
      const message = `${c.req.path} does not support ${c.req.method}, only ${methods.join(' and ')}.`
      return renderError(c, new RolloutError('request.wrong-method', message))
    })
  }
  app.notFound((c) => {
    const message = `Route ${c.req.method} ${c.req.path} does not exist; GET /openapi.json lists all routes.`
    return renderError(c, new RolloutError('request.unknown-route', message))
  })
  app.onError((error, c) => {
    if (!(error instanceof RolloutError)) options.onBug(error, undefined)
    return renderError(c, error)
  })
  return app
}

type AnyOptions = Omit<MountOptions<RouteTable, unknown>, 'table' | 'handlers'>

/** Provided by `@hono/node-server`. */
interface NodeBindings {
  outgoing?: { destroy(): void }
}

async function answer(
  c: Context,
  route: Route,
  handler: (call: unknown) => Promise<Reply<Route>>,
  { authorize, authorizeNode, onBug, onRequest, checkAnswers = false }: AnyOptions,
): Promise<Response> {
  const request = c.req.raw
  const { outgoing } = (c.env ?? {}) as NodeBindings
  const cancelled = new AbortController()
  const signal = AbortSignal.any([request.signal, cancelled.signal])
  const onAnswer = onRequest?.(request, route)
  let caller: unknown
  try {
    caller = await authorize(request, route)
    const params = c.req.param()
    if (isByNode(route)) authorizeNode?.(caller, route, params['node_id'])
    const call = await readCall(route, request, params)
    const authorizeNamed = (nodeId: string | undefined): void => authorizeNode?.(caller, route, nodeId)
    if (route.nodeField !== undefined && !isRaw(route)) authorizeNamed(textAt(call.body, route.nodeField))
    const reply = await handler({ ...call, caller, authorizeNode: authorizeNamed, signal })
    const response = await renderReply(route, reply, request, {
      checkAnswers,
      onCut: (error) => onBug(error, route),
      onCancel: () => cancelled.abort(),
      cut: outgoing && (() => outgoing.destroy()),
    })
    onAnswer?.({ status: response.status, caller })
    return response
  } catch (error) {
    if (!(error instanceof RolloutError)) onBug(error, route)
    const response = renderError(c, error)
    onAnswer?.({ status: response.status, caller, error })
    return response
  }
}

function isByNode({ params }: Route): boolean {
  return params !== undefined && Object.hasOwn(params.shape, 'node_id')
}

function isRaw({ body }: Route): boolean {
  return body?.kind === 'json' && body.isRaw === true
}

function textAt(body: unknown, path: string): string | undefined {
  let value = body
  for (const name of path.split('.')) value = (value as Readonly<Record<string, unknown>> | null | undefined)?.[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}

function renderError(c: Context, error: unknown): Response {
  const failure = toFailure(error)
  // The message of a bug may contain anything, so it goes only to the log.
  const isBug = !(error instanceof RolloutError)
  const shown = isBug ? { ...failure, message: 'Internal server error; see the log of the server.' } : failure
  if (shown.status === 401) c.header('www-authenticate', 'Bearer')
  if (shown.retryAfterSeconds !== undefined) c.header('retry-after', String(Math.ceil(shown.retryAfterSeconds)))
  const problems = error instanceof InvalidRequest ? error.problems : undefined
  return c.json(toErrorBody(shown, problems), shown.status as 400)
}

function toHonoPath(path: string): string {
  return path.replaceAll(/\{(\w+)\}/g, ':$1')
}
