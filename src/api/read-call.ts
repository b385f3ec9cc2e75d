import type * as z from 'zod'
import { holdsMoreValuesThan, nestsDeeperThan } from '../lib/json/json-depth.ts'
import { RolloutError } from '../model/failure.ts'
import type { Problem } from './error-body.ts'
import { limitStream, readAll } from './limit-stream.ts'
import { type Loosened, loosen } from './loosen.ts'
import { MAX_VALUES, type RequestBody, type Route } from './route.ts'

/** A request that does not match the schemas of its route, with all problems. */
export class InvalidRequest extends RolloutError {
  readonly problems: readonly Problem[]

  constructor(message: string, problems: readonly Problem[]) {
    const param = problems[0]?.loc.join('.')
    super('request.malformed', message, { status: 422, param })
    this.problems = problems
  }
}

/** Deeper than any valid body: deeper nesting is an attack on recursive code. */
const MAX_JSON_DEPTH = 64
/** Number of problems that one response reports. */
const MAX_PROBLEMS = 20

export interface CheckedCall {
  params: unknown
  query: unknown
  body: unknown
  /** Conversions of the body, for the response. */
  warnings: string[]
  /** The same for all tries of one request; undefined if the client sent none. */
  idempotencyKey: string | undefined
}

/** With this header unknown fields and wrong types are rejected; our own clients send it. */
export const STRICT_HEADER = 'x-polar-strict'
export const KEY_HEADER = 'idempotency-key'
const MAX_KEY_LENGTH = 256

/** Parses and validates the whole request; throws with all problems at once. */
export async function readCall(
  route: Route,
  request: Request,
  pathParams: Readonly<Record<string, string>>,
): Promise<CheckedCall> {
  const problems: Problem[] = []
  const check = (where: string, schema: z.ZodType | undefined, value: unknown): unknown => {
    if (schema === undefined) return {}
    const parsed = schema.safeParse(value, { reportInput: true })
    if (parsed.success) return parsed.data
    problems.push(...listProblems(where, parsed.error))
    return undefined
  }
  const params = check('path', route.params, route.params && readTexts(route.params, Object.entries(pathParams)))
  const query = check('query', route.query, route.query && readTexts(route.query, queryOf(route, request)))
  const idempotencyKey = request.headers.get(KEY_HEADER) ?? undefined
  if ((idempotencyKey?.length ?? 0) > MAX_KEY_LENGTH) {
    problems.push({
      loc: ['header', KEY_HEADER],
      msg: `must not be longer than ${MAX_KEY_LENGTH} characters`,
      type: 'too_big',
    })
  }
  const value = await readBody(route.body, request)
  const { value: read, warnings } = loosenBody(route.body, value, request)
  const body = route.body?.kind === 'json' && !route.body.isRaw ? check('body', route.body.schema, read) : value
  if (problems.length === 0) return { params, query, body, warnings, idempotencyKey }
  throw invalidRequest(route, problems)
}

export function invalidRequest(route: Route, problems: readonly Problem[]): InvalidRequest {
  const first = problems.slice(0, MAX_PROBLEMS)
  const shown = first.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`)
  const message = `The request to ${route.method.toUpperCase()} ${route.path} is invalid. ${shown.join('; ')}`
  return new InvalidRequest(message, first)
}

/** The first problems of one part of a request. */
export function listProblems(where: string, error: z.ZodError): Problem[] {
  const first = error.issues.slice(0, MAX_PROBLEMS)
  return first.flatMap((issue) => toProblems(where, issue)).slice(0, MAX_PROBLEMS)
}

function loosenBody(body: RequestBody | undefined, value: unknown, request: Request): Loosened {
  const isStrict = /^(?:true|1)$/i.test(request.headers.get(STRICT_HEADER) ?? '')
  if (body?.kind !== 'json' || body.adapt === undefined || isStrict) return { value, warnings: [] }
  const adapted = body.adapt(value)
  const loosened = loosen(body.schema, adapted.value)
  return { value: loosened.value, warnings: [...adapted.warnings, ...loosened.warnings] }
}

/** `EventSource` reconnects with the header `Last-Event-ID`, which is newer than the id in its URL. */
function queryOf(route: Route, request: Request): [string, string][] {
  const pairs = [...new URL(request.url).searchParams]
  const lastEventId = route.answer.kind === 'sse' ? request.headers.get('last-event-id') : null
  if (lastEventId === null || lastEventId === '') return pairs
  return [...pairs.filter(([name]) => name !== 'last_event_id'), ['last_event_id', lastEventId]]
}

/**
 * Converts texts of a URL to the types of the schema. A text that does not match stays text, for the schema to reject. An
 * empty text counts as absent: some HTTP libraries write null this way.
 */
function readTexts(schema: z.ZodObject, pairs: Iterable<readonly [string, string]>): Record<string, unknown> {
  const values = new Map<string, unknown>()
  for (const [name, text] of pairs) {
    const type = Object.hasOwn(schema.shape, name) ? typeOf(schema.shape[name] as z.ZodType) : 'string'
    if (text === '') continue
    if (type === 'array') values.set(name, [...((values.get(name) as string[] | undefined) ?? []), text])
    // A repeated field becomes a list, which the schema rejects.
    else values.set(name, values.has(name) ? [values.get(name), text] : toValue(type, text))
  }
  return Object.fromEntries(values)
}

function typeOf(schema: z.ZodType): string {
  const { type, innerType } = schema.def as { type: string; innerType?: z.ZodType }
  return innerType === undefined ? type : typeOf(innerType)
}

function toValue(type: string, text: string): unknown {
  if (type === 'number' && /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i.test(text)) return Number(text)
  // The texts that FastAPI accepts.
  if (type === 'boolean' && /^(?:true|1|yes|on|t|y)$/i.test(text)) return true
  if (type === 'boolean' && /^(?:false|0|no|off|f|n)$/i.test(text)) return false
  return text
}

async function readBody(body: RequestBody | undefined, request: Request): Promise<unknown> {
  if (body === undefined) return undefined
  const encoding = request.headers.get('content-encoding') ?? 'identity'
  if (encoding !== 'identity') {
    throw new RolloutError(
      'request.unsupported-encoding',
      `Compressed request bodies are not supported (${encoding}); send the body uncompressed.`,
    )
  }
  const declared = Number(request.headers.get('content-length') ?? 0)
  if (declared > body.maxBytes) throw tooLarge(body.maxBytes)
  const stream = limitStream(request.body ?? new Blob([]).stream(), body.maxBytes, () => tooLarge(body.maxBytes))
  if (body.kind === 'bytes') return stream

  // A web page can send text and forms to any server without CORS preflight, but not JSON: this protects a local server.
  const type = request.headers.get('content-type') ?? ''
  if (!/^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i.test(type)) {
    const message = `The content type must be application/json, not ${type === '' ? 'absent' : type}.`
    throw new RolloutError('request.malformed', message, { status: 415, param: 'content-type' })
  }
  const bytes = await readAll(stream)
  return body.isRaw ? bytes : parseJson(bytes, body.maxValues)
}

/** Throws `request.malformed` if the bytes are not JSON, or would need too much memory to parse. */
export function parseJson(bytes: Buffer, maxValues: number = MAX_VALUES): unknown {
  if (nestsDeeperThan(bytes, MAX_JSON_DEPTH)) {
    throw new RolloutError('request.malformed', `The body nests deeper than ${MAX_JSON_DEPTH} levels.`, {
      param: 'body',
    })
  }
  // A value takes at least two bytes, so most bodies are too short to exceed the limit.
  if (bytes.length > 2 * maxValues && holdsMoreValuesThan(bytes, maxValues)) {
    throw new RolloutError('request.malformed', `The body holds more than ${maxValues} values.`, { param: 'body' })
  }
  try {
    return JSON.parse(bytes.toString())
  } catch (error) {
    const message = 'The body is not JSON.'
    throw new RolloutError('request.malformed', message, { cause: error, param: 'body' })
  }
}

function tooLarge(maxBytes: number): RolloutError {
  return new RolloutError('request.too-large', `The body is longer than the limit of ${maxBytes} bytes.`)
}

/** An unknown key is reported with its own path, not that of its object. */
function toProblems(where: string, issue: z.core.$ZodIssue): Problem[] {
  const loc = [where, ...issue.path.map((part) => (typeof part === 'symbol' ? String(part) : part))]
  if (issue.code === 'unrecognized_keys') {
    const keys = issue.keys.slice(0, MAX_PROBLEMS)
    return keys.map((key) => ({ loc: [...loc, key], msg: 'unknown field', type: 'extra_forbidden' }))
  }
  const isMissing = issue.code === 'invalid_type' && issue.input === undefined
  return [{ loc, msg: issue.message, type: isMissing ? 'missing' : issue.code }]
}
