import type * as z from 'zod'

/** An error answer in vLLM's format: `{"error": {"message", "type", "param", "code"}}`. */
export class EngineError extends Error {
  override readonly name = 'EngineError'
  readonly status: number
  readonly type: string
  readonly param: string | null
  readonly retryAfterSeconds: number | undefined
  /** The exceeded length, for wires with their own message. */
  readonly overflow: Overflow | undefined

  constructor(
    status: number,
    message: string,
    options: {
      type?: string
      param?: string | null
      retryAfterSeconds?: number
      overflow?: Overflow
      cause?: unknown
    } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.status = status
    this.type = options.type ?? typeOf(status)
    this.param = options.param ?? null
    this.retryAfterSeconds = options.retryAfterSeconds
    this.overflow = options.overflow
  }
}

/** Lengths in tokens. */
export interface Overflow {
  prompt: number
  /** Requested limit of the answer; 0 if there was none. */
  output: number
  context: number
}

/** A value that vLLM rejects after parsing. vLLM appends parameter and value in brackets to the message. */
export function badRequest(message: string, parameter?: string, value?: unknown, overflow?: Overflow): EngineError {
  const extras = [
    ...(parameter === undefined ? [] : [`parameter=${parameter}`]),
    ...(value === undefined ? [] : [`value=${toPythonText(value)}`]),
  ]
  return new EngineError(400, extras.length === 0 ? message : `${message} (${extras.join(', ')})`, {
    param: parameter,
    overflow,
  })
}

/** Starlette's own answers (404 and 405 of the router, invalid JSON) have the status phrase as type. */
export function httpError(status: number, message?: string): EngineError {
  const phrase = PHRASES[status] ?? 'Error'
  return new EngineError(status, message ?? phrase, { type: phrase })
}

/** Fields of the wrong type in FastAPI's format. */
export function fieldErrors(issues: readonly FieldIssue[]): EngineError {
  const lines = issues.map(({ path, type, message, input }) => {
    const loc = ['body', ...path].map((step) => toPythonRepr(step)).join(', ')
    return `  {'type': '${type}', 'loc': (${loc}${path.length === 0 ? ',' : ''}), 'msg': ${toPythonRepr(message)}, 'input': ${toPythonRepr(input)}}`
  })
  const label = issues.length === 1 ? 'error' : 'errors'
  return new EngineError(400, `${issues.length} validation ${label}:\n${lines.join('\n')}`, {
    type: 'Bad Request',
    param: ['body', ...(issues[0]?.path ?? [])].join('.'),
  })
}

export interface FieldIssue {
  path: readonly (string | number)[]
  type: string
  message: string
  input: unknown
}

export function toFieldIssues(error: z.core.$ZodError, body: unknown): FieldIssue[] {
  return error.issues
    .flatMap((issue) => unfold(issue))
    .map((issue) => {
      const path = issue.path.map((step) => (typeof step === 'symbol' ? String(step) : step))
      return { path, ...describe(issue), input: valueAt(body, path) }
    })
}

/** Returns the intended branch of a union: a branch of another type was not intended. */
function unfold(issue: z.core.$ZodIssue): z.core.$ZodIssue[] {
  if (issue.code !== 'invalid_union' || issue.errors.length === 0) return [issue]
  const isOther = (inner: z.core.$ZodIssue) => inner.code === 'invalid_type' && inner.path.length === 0
  const branch = issue.errors.find((inner) => !inner.some(isOther)) ?? issue.errors[0] ?? []
  return branch.flatMap(unfold).map((inner) => ({ ...inner, path: [...issue.path, ...inner.path] }))
}

const TYPE_WORDS: Readonly<Record<string, { type: string; message: string }>> = {
  int: { type: 'int_type', message: 'Input should be a valid integer' },
  number: { type: 'float_type', message: 'Input should be a valid number' },
  string: { type: 'string_type', message: 'Input should be a valid string' },
  boolean: { type: 'bool_type', message: 'Input should be a valid boolean' },
  array: { type: 'list_type', message: 'Input should be a valid list' },
  object: { type: 'dict_type', message: 'Input should be a valid dictionary' },
  record: { type: 'dict_type', message: 'Input should be a valid dictionary' },
}

function describe(issue: z.core.$ZodIssue): { type: string; message: string } {
  if (issue.code === 'invalid_type') {
    if (issue.message.endsWith('received undefined')) return { type: 'missing', message: 'Field required' }
    return TYPE_WORDS[issue.expected] ?? { type: `${issue.expected}_type`, message: issue.message }
  }
  if (issue.code === 'invalid_value') {
    return { type: 'literal_error', message: `Input should be ${issue.values.map(toPythonRepr).join(' or ')}` }
  }
  const isList = 'origin' in issue && (issue.origin === 'array' || issue.origin === 'string')
  if (issue.code === 'too_big') {
    return isList
      ? { type: 'too_long', message: `Input should have at most ${issue.maximum} items` }
      : { type: 'less_than_equal', message: `Input should be less than or equal to ${issue.maximum}` }
  }
  if (issue.code === 'too_small') {
    return isList
      ? { type: 'too_short', message: `Input should have at least ${issue.minimum} items` }
      : { type: 'greater_than_equal', message: `Input should be greater than or equal to ${issue.minimum}` }
  }
  return { type: 'value_error', message: issue.message }
}

function valueAt(body: unknown, path: readonly (string | number)[]): unknown {
  let value = body
  for (const step of path) value = typeof value === 'object' && value !== null ? Reflect.get(value, step) : undefined
  return value
}

export function toErrorBody(error: EngineError): string {
  const { message, type, param, status } = error
  return JSON.stringify({ error: { message, type, param, code: status } })
}

function typeOf(status: number): string {
  if (status === 404) return 'NotFoundError'
  if (status === 501) return 'NotImplementedError'
  if (status >= 500) return 'InternalServerError'
  return status === 400 ? 'BadRequestError' : (PHRASES[status] ?? 'BadRequestError')
}

const PHRASES: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  401: 'Unauthorized',
  404: 'Not Found',
  405: 'Method Not Allowed',
  408: 'Request Timeout',
  413: 'Content Too Large',
  429: 'Too Many Requests',
  500: 'Internal Server Error',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
  504: 'Gateway Timeout',
}

/** Returns a shortened `str()` of a value for recognition. */
function toPythonText(value: unknown): string {
  return typeof value === 'string' ? value.slice(0, MAX_SHOWN) : toPythonRepr(value)
}

function toPythonRepr(value: unknown): string {
  if (value === null || value === undefined) return 'None'
  if (value === true) return 'True'
  if (value === false) return 'False'
  if (typeof value === 'string') return `'${value.slice(0, MAX_SHOWN).replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
  return shorten(JSON.stringify(value) ?? '')
}

function shorten(text: string): string {
  return text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN)}...`
}

const MAX_SHOWN = 120
