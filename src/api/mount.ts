import { type Context, Hono } from 'hono'
import { RolloutError, toFailure } from '../model/failure.ts'
import { toErrorBody } from './error-body.ts'
import { InvalidRequest, readCall } from './read-call.ts'
import type { Body, Params, Query, Route, RouteTable } from './route.ts'
import { type Reply, renderReply } from './render-reply.ts'

/** A request that was let in and is as its route says. */
export interface Call<R extends Route, Caller> {
  params: Params<R>
  query: Query<R>
  body: Body<R>
  /** What of the body was not taken as it came, for the answer. */
  warnings: readonly string[]
  /** The same for all tries of one call; absent: the caller gave none. */
  idempotencyKey: string | undefined
  /** Who asks, as `authorize` said. */
  caller: Caller
  /** Throws `request.forbidden` when the caller may not speak for this node. For bodies that the handler reads itself. */
  authorizeNode: (nodeId: string | undefined) => void
  /** Aborted when nobody waits for the answer any more, also in the middle of a stream. */
  signal: AbortSignal
}

export type Handlers<Table extends RouteTable, Caller> = {
  [Name in keyof Table]: (call: Call<Table[Name], Caller>) => Promise<Reply<Table[Name]>>
}

export interface MountOptions<Table extends RouteTable, Caller> {
  table: Table
  handlers: Handlers<Table, Caller>
  /** Asked before anything else of a request is read. Throws `request.unauthorized` or `request.forbidden`. */
  authorize: (request: Request, route: Route) => Promise<Caller> | Caller
  /**
   * Asked for each node that the request speaks for, which is where one token may and another may not. That of the path
   * before the body is read. Throws `request.forbidden`.
   */
  authorizeNode?: (caller: Caller, route: Route, nodeId: string | undefined) => void
  /** Hears of what no handler should have thrown; the caller is told no more than that it happened. */
  onBug: (error: unknown, route: Route | undefined) => void
  /** Called for each request; what it gives back hears how that was answered, once the answer begins. For a log. */
  onRequest?: (request: Request, route: Route) => (answered: Answered<Caller>) => void
  /** Holds what handlers answer against the schemas as well. For tests: past the edges types are trusted. */
  checkAnswers?: boolean
}

export interface Answered<Caller> {
  status: number
  /** Absent when nobody was let in. */
  caller?: Caller
  /** Why it is not what was asked for. */
  error?: unknown
}

/** The table as an app: every request is checked before a handler sees it, every error has the one shape. */
export function mountRoutes<Table extends RouteTable, Caller>(options: MountOptions<Table, Caller>): Hono {
  const app = new Hono()
  const methodsByPath = new Map<string, string[]>()
  for (const [name, route] of Object.entries(options.table)) {
    const path = toHonoPath(route.path)
    const method = route.method.toUpperCase()
    methodsByPath.set(path, [...(methodsByPath.get(path) ?? []), method])
    // The table and its handlers agree by their types; which entry this is, is only known by name here.
    const handler = options.handlers[name] as unknown as (call: unknown) => Promise<Reply<Route>>
    app.on(method, path, (c) => answer(c, route, handler, options as unknown as AnyOptions))
  }
  for (const [path, methods] of methodsByPath) {
    app.all(path, (c) => {
      c.header('allow', methods.join(', '))
      const message = `${c.req.path} does not take ${c.req.method}, only ${methods.join(' and ')}.`
      return renderError(c, new RolloutError('request.wrong-method', message))
    })
  }
  app.notFound((c) => {
    const message = `There is no ${c.req.method} ${c.req.path} in this API; GET /openapi.json names what there is.`
    return renderError(c, new RolloutError('request.unknown-route', message))
  })
  app.onError((error, c) => {
    if (!(error instanceof RolloutError)) options.onBug(error, undefined)
    return renderError(c, error)
  })
  return app
}

type AnyOptions = Omit<MountOptions<RouteTable, unknown>, 'table' | 'handlers'>

/** What `@hono/node-server` hands along. */
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
  const unwanted = new AbortController()
  const signal = AbortSignal.any([request.signal, unwanted.signal])
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
      onCancel: () => unwanted.abort(),
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
  // What a defect says of itself may quote anything, so only the log has it.
  const isBug = !(error instanceof RolloutError)
  const shown = isBug ? { ...failure, message: 'The server made a mistake; its log says which.' } : failure
  if (shown.status === 401) c.header('www-authenticate', 'Bearer')
  if (shown.retryAfterSeconds !== undefined) c.header('retry-after', String(Math.ceil(shown.retryAfterSeconds)))
  const problems = error instanceof InvalidRequest ? error.problems : undefined
  return c.json(toErrorBody(shown, problems), shown.status as 400)
}

function toHonoPath(path: string): string {
  return path.replaceAll(/\{(\w+)\}/g, ':$1')
}
