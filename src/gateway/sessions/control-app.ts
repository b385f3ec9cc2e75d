import { timingSafeEqual } from 'node:crypto'
import { Hono, type Context } from 'hono'
import * as z from 'zod'
import { whyForeign } from '../../lib/net/foreign-request.ts'
import { isOutbound } from '../../lib/net/outbound-header.ts'
import { hashToken, tokensOf } from '../../lib/net/request-tokens.ts'
import { holdsMoreValuesThan, nestsDeeperThan } from '../../lib/json/json-depth.ts'
import { RolloutError, toFailure } from '../../model/failure.ts'
import { SessionId } from '../../model/ids.ts'
import type { GatewayControl } from '../gateway.ts'
import type { ContinuationState } from '../upstreams/upstream.ts'
import { formatMetrics } from './metrics.ts'

export interface ControlDeps {
  gateway: GatewayControl
  /** For `GET /admin/inference/status`. */
  engine: { kind: string; url: string; continuation?: ContinuationState }
  /** Required by every route except `/health`. */
  token: string
  /** The address or name that the control API listens on. */
  host: string
}

const OpenBody = z.strictObject({
  session_id: SessionId.optional(),
  task_id: z.string().optional(),
  metadata: z.record(z.string(), z.unknown()).default({}),
  sampling: z
    .strictObject({
      temperature: z.number().min(0),
      top_p: z.number().min(0).max(1),
      top_k: z.int(),
      min_p: z.number().min(0).max(1),
      seed: z.int(),
      max_tokens: z.int().min(1),
    })
    .partial()
    .default({}),
})

const WeightBody = z.strictObject({ weight_version: z.string().min(1).max(256) })

/**
 * The API for trainers and nodes. It has its own listener, because a sandbox must reach only the data plane. Paths and
 * fields of `/admin/inference/*` and `/sessions` are those of NVIDIA Polar where it has them.
 */
export function createControlApp({ gateway, engine, token, host }: ControlDeps): Hono {
  const app = new Hono()
  const expected = hashToken(token)

  app.use('*', async (c, next) => {
    const why = whyForeign(c.req.raw.headers, host)
    if (why !== undefined) return c.json({ error: `The control API rejects requests of web pages, but ${why}.` }, 403)
    if (!isOutbound(c.req.raw.headers)) return next()
    return c.json({ error: 'The control API rejects callbacks and evaluators of tasks.' }, 403)
  })
  app.get('/health', (c) => c.json({ status: 'ok' }))
  app.use('*', async (c, next) => {
    if (tokensOf(c.req.raw.headers).some((given) => timingSafeEqual(hashToken(given), expected))) return next()
    return c.json({ error: 'The control API requires its token. Send it as "Authorization: Bearer TOKEN".' }, 401)
  })

  app.post('/sessions', async (c) => {
    const body = await parseBody(c, OpenBody)
    const { sampling } = body
    const access = await gateway.openSession({
      id: body.session_id,
      origin: { ...body.metadata, task_id: body.task_id },
      sampling: {
        temperature: sampling.temperature,
        topP: sampling.top_p,
        topK: sampling.top_k,
        minP: sampling.min_p,
        seed: sampling.seed,
        maxTokens: sampling.max_tokens,
      },
    })
    return c.json({ session_id: access.id, base_url: access.baseUrl, api_key: access.key }, 201)
  })

  app.delete('/sessions/:id', async (c) => {
    const id = SessionId.safeParse(c.req.param('id'))
    if (!id.success) return c.json({ error: 'The path contains no valid session id.' }, 400)
    const broken = await gateway.closeSession(id.data)
    return c.json({ session_id: id.data, deleted: true, incomplete: broken?.message ?? null })
  })

  const statusOf = async () => {
    const { paused, inFlight, sessions, weightVersion } = await gateway.status()
    return {
      paused,
      inflight: inFlight,
      sessions,
      weight_version: weightVersion ?? null,
      base_url: engine.url,
      engine: engine.kind,
      continuation: engine.continuation ?? null,
    }
  }

  app.get('/admin/inference/status', async (c) => c.json(await statusOf()))

  app.post('/admin/inference/pause', async (c) => {
    const seconds = z.coerce.number().min(0).max(3600).default(300).safeParse(c.req.query('timeout_seconds'))
    if (!seconds.success) return c.json({ error: 'timeout_seconds must be a number from 0 to 3600.' }, 400)
    const isDrained = await gateway.pause(seconds.data * 1000)
    return c.json(await statusOf(), isDrained ? 200 : 504)
  })

  app.post('/admin/inference/resume', async (c) => {
    await gateway.resume()
    return c.json(await statusOf())
  })

  app.put('/admin/weights', async (c) => {
    const { weight_version } = await parseBody(c, WeightBody)
    await gateway.setWeightVersion(weight_version)
    return c.json(await statusOf())
  })

  app.get('/metrics', async (c) => {
    const { paused, inFlight, sessions } = await gateway.status()
    const gauges = {
      polar_in_flight: inFlight,
      polar_paused: paused ? 1 : 0,
      polar_sessions: sessions,
      polar_continuation: engine.continuation === undefined || engine.continuation.via === 'off' ? 0 : 1,
    }
    return c.text(formatMetrics(await gateway.metrics(), gauges), 200, { 'content-type': 'text/plain; version=0.0.4' })
  })

  app.notFound((c) => c.json({ error: `Unknown route: ${c.req.method} ${c.req.path}.` }, 404))
  app.onError((error, c) => {
    const failure = toFailure(error)
    const status = failure.code === 'config.invalid' ? 409 : failure.status
    return c.json({ error: failure.message, code: failure.code }, status as 400)
  })
  return app
}

async function parseBody<T>(c: Context, schema: z.ZodType<T>): Promise<T> {
  const bytes = await readBytes(c.req.raw)
  if (nestsDeeperThan(bytes, DEEPEST_JSON) || holdsMoreValuesThan(bytes, MOST_VALUES)) {
    throw new RolloutError('request.malformed', `The body nests deeper than ${DEEPEST_JSON} levels or holds too much.`)
  }
  let value: unknown
  try {
    value = bytes.length === 0 ? {} : JSON.parse(bytes.toString())
  } catch (error) {
    throw new RolloutError('request.malformed', 'The body is not JSON.', { cause: error })
  }
  const body = schema.safeParse(value)
  if (body.success) return body.data
  throw new RolloutError('request.malformed', z.prettifyError(body.error).slice(0, LONGEST_PROBLEM))
}

/** Far more than a session needs. */
const MOST_BYTES = 1024 * 1024
const MOST_VALUES = 10_000
const DEEPEST_JSON = 64
const LONGEST_PROBLEM = 2000

async function readBytes(request: Request): Promise<Buffer> {
  const pieces: Uint8Array[] = []
  let size = 0
  for await (const piece of request.body ?? []) {
    size += piece.length
    if (size > MOST_BYTES) {
      throw new RolloutError('request.too-large', `The body is longer than ${MOST_BYTES} bytes.`)
    }
    pieces.push(piece)
  }
  return Buffer.concat(pieces)
}
