import type * as z from 'zod'
import { holdsMoreValuesThan, nestsDeeperThan } from '../lib/json/json-depth.ts'
import { RolloutError } from '../model/failure.ts'
import type { Problem } from './error-body.ts'
import { limitStream, readAll } from './limit-stream.ts'
import { type Loosened, loosen } from './loosen.ts'
import { MOST_VALUES, type RequestBody, type Route } from './route.ts'

/** A request that is not as its route says, with all that is wrong with it. */
export class InvalidRequest extends RolloutError {
  readonly problems: readonly Problem[]

  constructor(message: string, problems: readonly Problem[]) {
    const param = problems[0]?.loc.join('.')
    super('request.malformed', message, { status: 422, ...(param !== undefined && { param }) })
    this.problems = problems
  }
}

/** Deeper than any task: what nests further is an attack on whoever walks it. */
const DEEPEST_JSON = 64
/** Problems that are reported of one request; the first ones say enough. */
const MOST_PROBLEMS = 20

export interface CheckedCall {
  params: unknown
  query: unknown
  body: unknown
  /** What of the body was not taken as it came, for the answer. */
  warnings: string[]
  /** The same for all tries of one call; absent: the caller gave none. */
  idempotencyKey: string | undefined
}

/** With this header an unknown field or a wrong type is refused; our own clients send it. */
export const STRICT_HEADER = 'x-polar-strict'
export const KEY_HEADER = 'idempotency-key'
const LONGEST_KEY = 256

/** Everything that the request says, checked; throws with all problems at once. */
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
  if ((idempotencyKey?.length ?? 0) > LONGEST_KEY) {
    problems.push({
      loc: ['header', KEY_HEADER],
      msg: `must not be longer than ${LONGEST_KEY} characters`,
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
  const first = problems.slice(0, MOST_PROBLEMS)
  const shown = first.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`)
  const message = `This is not what ${route.method.toUpperCase()} ${route.path} takes. ${shown.join('; ')}`
  return new InvalidRequest(message, first)
}

/** What is wrong with one part of a request, the first problems only. */
export function listProblems(where: string, error: z.ZodError): Problem[] {
  const first = error.issues.slice(0, MOST_PROBLEMS)
  return first.flatMap((issue) => toProblems(where, issue)).slice(0, MOST_PROBLEMS)
}

function loosenBody(body: RequestBody | undefined, value: unknown, request: Request): Loosened {
  const isStrict = /^(?:true|1)$/i.test(request.headers.get(STRICT_HEADER) ?? '')
  if (body?.kind !== 'json' || body.adapt === undefined || isStrict) return { value, warnings: [] }
  const adapted = body.adapt(value)
  const loosened = loosen(body.schema, adapted.value)
  return { value: loosened.value, warnings: [...adapted.warnings, ...loosened.warnings] }
}

/** `EventSource` comes back with a header and nothing else; what it says is newer than the URL it was given. */
function queryOf(route: Route, request: Request): [string, string][] {
  const pairs = [...new URL(request.url).searchParams]
  const lastEventId = route.answer.kind === 'sse' ? request.headers.get('last-event-id') : null
  if (lastEventId === null || lastEventId === '') return pairs
  return [...pairs.filter(([name]) => name !== 'last_event_id'), ['last_event_id', lastEventId]]
}

/**
 * Texts of a URL as the types that the schema asks for. What does not look like the type stays text, for the schema to
 * refuse. An empty text is a field that was left out, which is how some HTTP libraries write null.
 */
function readTexts(schema: z.ZodObject, pairs: Iterable<readonly [string, string]>): Record<string, unknown> {
  const values = new Map<string, unknown>()
  for (const [name, text] of pairs) {
    const type = Object.hasOwn(schema.shape, name) ? typeOf(schema.shape[name] as z.ZodType) : 'string'
    if (text === '') continue
    if (type === 'array') values.set(name, [...((values.get(name) as string[] | undefined) ?? []), text])
    // Given twice it is neither the one nor the other, and no schema takes a list of both.
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
  // The words that FastAPI takes.
  if (type === 'boolean' && /^(?:true|1|yes|on|t|y)$/i.test(text)) return true
  if (type === 'boolean' && /^(?:false|0|no|off|f|n)$/i.test(text)) return false
  return text
}

async function readBody(body: RequestBody | undefined, request: Request): Promise<unknown> {
  if (body === undefined) return undefined
  const encoding = request.headers.get('content-encoding') ?? 'identity'
  if (encoding !== 'identity') {
    throw new RolloutError('request.unsupported-encoding', `Bodies are taken as they are, not with ${encoding}.`)
  }
  const declared = Number(request.headers.get('content-length') ?? 0)
  if (declared > body.maxBytes) throw tooLarge(body.maxBytes)
  const stream = limitStream(request.body ?? new Blob([]).stream(), body.maxBytes, () => tooLarge(body.maxBytes))
  if (body.kind === 'bytes') return stream

  // A web page can send text and forms anywhere without asking, but not this: it keeps pages out of a local server.
  const type = request.headers.get('content-type') ?? ''
  if (!/^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i.test(type)) {
    const message = `The body must be sent as application/json, not as ${type === '' ? 'something unnamed' : type}.`
    throw new RolloutError('request.malformed', message, { status: 415, param: 'content-type' })
  }
  const bytes = await readAll(stream)
  return body.isRaw ? bytes : parseJson(bytes, body.maxValues)
}

/** Throws `request.malformed` for what is not JSON, and for what would take too much memory to parse. */
export function parseJson(bytes: Buffer, maxValues: number = MOST_VALUES): unknown {
  if (nestsDeeperThan(bytes, DEEPEST_JSON)) {
    throw new RolloutError('request.malformed', `The body nests deeper than ${DEEPEST_JSON} levels.`, { param: 'body' })
  }
  // A value takes at least two bytes, so most bodies are too short to hold too many.
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
  return new RolloutError('request.too-large', `The body is longer than the ${maxBytes} bytes that this route takes.`)
}

/** A key that nobody knows is reported where it stands, not where it was missed. */
function toProblems(where: string, issue: z.core.$ZodIssue): Problem[] {
  const loc = [where, ...issue.path.map((part) => (typeof part === 'symbol' ? String(part) : part))]
  if (issue.code === 'unrecognized_keys') {
    const keys = issue.keys.slice(0, MOST_PROBLEMS)
    return keys.map((key) => ({ loc: [...loc, key], msg: 'there is no such field', type: 'extra_forbidden' }))
  }
  const isMissing = issue.code === 'invalid_type' && issue.input === undefined
  return [{ loc, msg: issue.message, type: isMissing ? 'missing' : issue.code }]
}
