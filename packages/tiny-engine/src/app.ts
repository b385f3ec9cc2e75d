import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { EngineContext } from './context.ts'
import {
  abortRequests,
  isPaused,
  metrics,
  pause,
  resume,
  updateWeights,
  updateWeightVersion,
  weightInfo,
} from './control-endpoints.ts'
import { EngineError, httpError } from './errors.ts'
import { Exchange } from './exchange.ts'
import { chatCompletions, completions, generateTokens, toEngineError } from './generation-endpoints.ts'
import { detokenize, listModels, renderChat, showModel, tokenize } from './text-endpoints.ts'
import type { Route, Wire } from './wire.ts'

export interface AppOptions {
  apiKey?: string
  /** Reported by `/version`. */
  version: string
}

/**
 * Creates every endpoint of the wire. Model names may contain slashes, so everything below `/v1/models/` is one name.
 */
function createRoutes(wire: Wire, options: AppOptions): Map<string, Route> {
  const empty: Route['handle'] = async (_context, exchange) => exchange.sendText('')
  const version: Route['handle'] = async (_context, exchange) =>
    exchange.sendJson(JSON.stringify({ version: options.version }))
  const routes: [path: string, Route][] = [
    ['/v1/chat/completions', { method: 'POST', handle: chatCompletions }],
    ['/v1/chat/completions/render', { method: 'POST', handle: renderChat }],
    ['/v1/completions', { method: 'POST', handle: (context, exchange) => completions(context, exchange) }],
    ['/inference/v1/generate', { method: 'POST', handle: generateTokens }],
    ['/tokenize', { method: 'POST', handle: tokenize }],
    ['/detokenize', { method: 'POST', handle: detokenize }],
    ['/v1/models', { method: 'GET', handle: listModels }],
    ['/v1/models/', { method: 'GET', handle: showModel }],
    ['/health', { method: 'GET', isOpen: true, handle: empty }],
    ['/ping', { method: 'GET', isOpen: true, handle: empty }],
    ['/version', { method: 'GET', isOpen: true, handle: version }],
    ['/pause', { method: 'POST', handle: pause }],
    ['/resume', { method: 'POST', handle: resume }],
    ['/is_paused', { method: 'GET', handle: isPaused }],
    ['/abort_requests', { method: 'POST', handle: abortRequests }],
    ['/weight_info', { method: 'GET', handle: weightInfo }],
    ['/update_weight_version', { method: 'POST', handle: updateWeightVersion }],
    ['/update_weights', { method: 'POST', handle: updateWeights }],
    ['/metrics', { method: 'GET', handle: metrics }],
  ]
  return new Map([...routes.filter(([path]) => wire.serves(path)), ...wire.routes])
}

export function createApp(context: EngineContext, options: AppOptions): RequestListener {
  const routes = createRoutes(context.wire, options)
  const keyDigest = options.apiKey === undefined ? undefined : digest(options.apiKey)
  return (request: IncomingMessage, response: ServerResponse) => {
    const exchange = new Exchange(request, response, context.wire.toErrorBody)
    answer(exchange).catch((error: unknown) => {
      // The client has disconnected.
      if (!exchange.signal.aborted) exchange.sendError(toEngineError(error))
    })
  }

  async function answer(exchange: Exchange): Promise<void> {
    const { method } = exchange.request
    const isModel = exchange.path.startsWith('/v1/models/')
    const route = routes.get(isModel ? '/v1/models/' : exchange.path)
    if (context.isLoading) throw new EngineError(503, 'Loading model')
    if (route?.isOpen !== true && !isAllowed(exchange)) {
      exchange.sendJson('{"error":"Unauthorized"}', 401)
      return
    }
    if (route === undefined) throw httpError(404)
    if (method !== route.method && !(method === 'HEAD' && route.method === 'GET')) throw httpError(405)
    if (method === 'POST') checkContentType(exchange)
    await route.handle(context, exchange)
  }

  function isAllowed({ request }: Exchange): boolean {
    if (keyDigest === undefined) return true
    const [scheme = '', token = ''] = (request.headers.authorization ?? '').split(' ', 2)
    return scheme.toLowerCase() === 'bearer' && timingSafeEqual(digest(token), keyDigest)
  }
}

/** Only endpoints with a body; `/pause` and `/resume` have none. */
function checkContentType({ request }: Exchange): void {
  const hasBody =
    request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0
  const type = (request.headers['content-type'] ?? '').split(';', 1)[0]?.trim().toLowerCase()
  if (!hasBody || type === 'application/json') return
  throw new EngineError(400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", {
    type: 'Bad Request',
  })
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
