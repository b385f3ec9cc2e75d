import { isDeepStrictEqual } from 'node:util'
import * as z from 'zod'
import { Failure } from '../model/failure.ts'
import { NodeStageMetrics } from '../model/node.ts'
import { SessionOrder } from '../model/session-order.ts'
import { SessionOutcome } from '../model/session-outcome.ts'
import { SessionResult, SessionTiming } from '../model/session.ts'
import { AgentSpec, EvaluatorSpec, RuntimeSpec, StrategySpec, TaskRequest, TaskStatus } from '../model/task.ts'
import { Trace } from '../model/trajectory.ts'
import { ErrorBody } from './error-body.ts'
import type { Route, RouteTable } from './route.ts'
import { NodeInfo } from './routes/node-routes.ts'
import { SessionSummary } from './routes/session-routes.ts'
import { SubmitRequest } from './routes/submit-request.ts'
import { TaskSummary } from './routes/task-routes.ts'

type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
type JsonObject = { [key: string]: Json }

export interface OpenApi {
  openapi: '3.1.0'
  info: JsonObject
  tags: JsonObject[]
  paths: Record<string, Record<string, JsonObject>>
  components: { schemas: Record<string, JsonObject>; responses: JsonObject; securitySchemes: JsonObject }
}

/** Schemas in `components`; all others are inlined. */
const named = {
  AgentSpec,
  ErrorBody,
  EvaluatorSpec,
  Failure,
  NodeInfo,
  NodeStageMetrics,
  RuntimeSpec,
  SessionOrder,
  SessionOutcome,
  SessionResult,
  SessionSummary,
  SessionTiming,
  StrategySpec,
  SubmitRequest,
  TaskRequest,
  TaskStatus,
  TaskSummary,
  Trace,
}

/** Error statuses of every route; some only with a body. */
const COMMON_STATUSES = [413, 415, 422, 503]

const MEANINGS: Readonly<Record<number, string>> = {
  400: 'The body is not JSON.',
  401: 'The token is missing or unknown.',
  403: 'The token does not allow this request.',
  404: 'The resource does not exist.',
  409: 'The request conflicts with the current state.',
  413: 'The body is too long.',
  415: 'The content type or encoding is not supported.',
  416: 'The requested range is outside the file.',
  422: 'The request is invalid; `detail` lists all problems.',
  429: 'A quota is exceeded; `Retry-After` contains the time to wait.',
  503: 'Temporarily unavailable; `Retry-After` may contain the time to wait.',
  504: 'Some nodes have not confirmed in time.',
}

/** Renders the route table as an OpenAPI 3.1 document. */
export function toOpenApi(table: RouteTable, version: string): OpenApi {
  const schemas = new SchemaWriter()
  const responses = toErrors(schemas)
  const paths: OpenApi['paths'] = {}
  for (const [name, route] of Object.entries(table)) {
    paths[route.path] = { ...paths[route.path], [route.method]: toOperation(name, route, schemas) }
  }
  return mergeEqualSchemas({
    openapi: '3.1.0',
    info: {
      title: 'Polar rollout server',
      version,
      description:
        'Trainers submit tasks; nodes lease their sessions and upload results. Trainer-facing paths, fields and statuses are ' +
        'those of NVIDIA Polar; operations with `x-origin: polar` are additions.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    tags: [...new Set(Object.values(table).map(({ tag }) => tag))].map((tag) => ({ name: tag })),
    paths,
    components: {
      schemas: schemas.toComponents(),
      responses,
      securitySchemes: { token: { type: 'http', scheme: 'bearer', description: 'A token with one of the scopes.' } },
    },
  })
}

function toOperation(name: string, route: Route, schemas: SchemaWriter): JsonObject {
  const description = [route.description, route.idempotency && `Idempotency: ${route.idempotency}`].filter(Boolean)
  return {
    operationId: name,
    summary: route.summary,
    ...(description.length > 0 && { description: description.join('\n\n') }),
    tags: [route.tag],
    'x-origin': route.origin,
    'x-idempotent': route.isIdempotent,
    // One of the scopes is enough.
    security: route.scopes.map((scope) => ({ token: [scope] })),
    parameters: [
      ...toParameters('path', route.params, schemas),
      ...toParameters('query', route.query, schemas),
      ...toHeaders(route),
    ],
    ...(route.body && { requestBody: toRequestBody(route, schemas) }),
    responses: toResponses(route, schemas),
  }
}

function toParameters(where: 'path' | 'query', schema: z.ZodObject | undefined, schemas: SchemaWriter): JsonObject[] {
  if (schema === undefined) return []
  const { properties = {}, required = [] } = schemas.write(schema, 'input') as {
    properties?: Record<string, JsonObject>
    required?: string[]
  }
  return Object.entries(properties).map(([name, { description, ...type }]) => ({
    name,
    in: where,
    required: where === 'path' || required.includes(name),
    ...(description !== undefined && { description }),
    schema: type,
  }))
}

function toHeaders({ answer }: Route): JsonObject[] {
  if (answer.kind !== 'sse') return []
  const description = 'Id of the last received event; the stream starts after it. Has precedence over `last_event_id`.'
  return [{ name: 'Last-Event-ID', in: 'header', required: false, description, schema: { type: 'string' } }]
}

function toRequestBody({ body, examples }: Route, schemas: SchemaWriter): JsonObject {
  if (body?.kind !== 'json') return { required: true, content: { 'application/octet-stream': {} } }
  const example: JsonObject = examples?.body === undefined ? {} : { example: examples.body as Json }
  return {
    required: true,
    content: { 'application/json': { schema: schemas.write(body.schema, 'input'), ...example } },
  }
}

function toResponses(route: Route, schemas: SchemaWriter): JsonObject {
  const statuses = new Set<number>([...COMMON_STATUSES, ...(route.errors ?? [])])
  if (route.body?.kind === 'json') statuses.add(400)
  if (route.body === undefined) for (const status of [413, 415]) statuses.delete(status)
  if (route.body === undefined && !route.params && !route.query) statuses.delete(422)
  if (route.scopes.length > 0) statuses.add(401).add(403)
  const errors = [...statuses]
    .sort((a, b) => a - b)
    .map((status) => [String(status), { $ref: `#/components/responses/Error${status}` }])
  return { '200': { description: 'Success.', content: toContent(route, schemas) }, ...Object.fromEntries(errors) }
}

function toErrors(schemas: SchemaWriter): JsonObject {
  const content = { 'application/json': { schema: schemas.write(ErrorBody, 'output') } }
  const errors = Object.entries(MEANINGS).map(([status, description]) => [`Error${status}`, { description, content }])
  return Object.fromEntries(errors) as JsonObject
}

function toContent({ answer, examples }: Route, schemas: SchemaWriter): JsonObject {
  const example: JsonObject = examples?.answer === undefined ? {} : { example: examples.answer as Json }
  switch (answer.kind) {
    case 'json':
      return { 'application/json': { schema: schemas.write(answer.schema, 'output'), ...example } }
    case 'ndjson':
      return { 'application/x-ndjson': { schema: schemas.write(answer.schema, 'output') } }
    case 'sse':
      return { 'text/event-stream': { schema: schemas.write(answer.schema, 'output') } }
    case 'bytes':
      return { 'application/octet-stream': {} }
  }
}

/** Renames `XInput` to `X` if there is no `X`, or both are equal. */
function mergeEqualSchemas(document: OpenApi): OpenApi {
  const { schemas } = document.components
  const merged = Object.keys(named).filter((id) => {
    const { [id]: output, [`${id}Input`]: input } = schemas
    if (input === undefined || (output !== undefined && !isDeepStrictEqual(input, output))) return false
    schemas[id] = input
    delete schemas[`${id}Input`]
    return true
  })
  const rename = (text: string, id: string): string => text.replaceAll(`/schemas/${id}Input"`, `/schemas/${id}"`)
  return JSON.parse(merged.reduce(rename, JSON.stringify(document))) as OpenApi
}

/**
 * Renders schemas and collects the named ones. Requests and responses differ in the fields that may be absent, so a schema
 * that is used in both and has defaults is rendered twice: `XInput` for requests, `X` for responses.
 */
class SchemaWriter {
  readonly #registry = z.registry<{ id: string }>()
  readonly #inputs = new Map<string, JsonObject>()
  readonly #outputs = new Map<string, JsonObject>()

  constructor() {
    for (const [id, schema] of Object.entries(named)) this.#registry.add(schema, { id })
  }

  write(schema: z.ZodType, io: 'input' | 'output'): JsonObject {
    const rendered = z.toJSONSchema(schema, {
      io,
      metadata: this.#registry,
      unrepresentable: 'any',
      override({ zodSchema, jsonSchema }) {
        // `describe` writes to the global registry, which `metadata` replaces.
        const description = z.globalRegistry.get(zodSchema)?.description
        if (description !== undefined) jsonSchema.description = description
        // Responses may get new fields, so clients must accept unknown ones.
        if (io === 'output' && jsonSchema.additionalProperties === false) delete jsonSchema.additionalProperties
      },
    }) as JsonObject
    const { $schema: _, $defs = {}, ...rest } = rendered
    const known = io === 'input' ? this.#inputs : this.#outputs
    for (const [id, definition] of Object.entries($defs as Record<string, JsonObject>)) known.set(id, definition)
    const own = this.#registry.get(schema)?.id
    if (own === undefined) return pointToComponents(rest, io)
    if (!('$ref' in rest)) known.set(own, rest)
    return pointToComponents({ $ref: `#/$defs/${own}` }, io)
  }

  toComponents(): Record<string, JsonObject> {
    const all = [
      ...[...this.#inputs].map(([id, schema]) => [`${id}Input`, pointToComponents(schema, 'input')] as const),
      ...[...this.#outputs].map(([id, schema]) => [id, pointToComponents(schema, 'output')] as const),
    ]
    return Object.fromEntries(all.sort(([a], [b]) => (a < b ? -1 : 1)))
  }
}

function pointToComponents<T extends Json>(value: T, io: 'input' | 'output'): T {
  if (Array.isArray(value)) return value.map((item) => pointToComponents(item, io)) as T
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).flatMap(([key, item]): [string, Json][] => {
    // The registry adds the name as `id`; the key in `components` already holds it.
    if (key === 'id' && typeof item === 'string' && Object.hasOwn(named, item)) return []
    if (key !== '$ref' || typeof item !== 'string') return [[key, pointToComponents(item, io)]]
    const id = item.slice('#/$defs/'.length)
    return [[key, `#/components/schemas/${id}${io === 'input' ? 'Input' : ''}`]]
  })
  return Object.fromEntries(entries) as T
}
