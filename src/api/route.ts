import type * as z from 'zod'
import type { Loosened } from './loosen.ts'

/** Scope of a token. A route lists the scopes of which one is enough; a route without scopes needs no token. */
export type Scope = 'trainer' | 'node' | 'read'

export type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

export type RequestBody =
  | {
      kind: 'json'
      schema: z.ZodType
      maxBytes: number
      /** Limit on values in the whole body. Absent: MAX_VALUES. */
      maxValues?: number
      /**
       * The handler gets the bytes and validates them itself, in another thread: parsing may take too long for the event loop.
       * The handler also authorizes the node in the body.
       */
      isRaw?: true
      /**
       * Translates bodies of NVIDIA Polar's clients; afterwards loosen.ts converts the rest. Skipped if the client sends the
       * strict header. Absent: only the schema applies.
       */
      adapt?: (value: unknown) => Loosened
    }
  /** Streamed, never buffered as a whole. */
  | { kind: 'bytes'; maxBytes: number }

/** Default limit on values in a JSON body: far more than any batch of tasks has. */
export const MAX_VALUES = 1_000_000

export type AnswerBody =
  | { kind: 'json'; schema: z.ZodType }
  /** One JSON value per line. `resumeBy`: query field with the number of lines to skip. */
  | { kind: 'ndjson'; schema: z.ZodType; resumeBy: string }
  /** Server-sent events with JSON data, each with an id for `Last-Event-ID`. */
  | { kind: 'sse'; schema: z.ZodType }
  | { kind: 'bytes' }

/** Error statuses of a route; 400, 401, 403, 413, 415, 422 and 503 are implied. */
export type ErrorStatus = 404 | 409 | 416 | 429 | 504

/** One endpoint: the source of its validation, client and OpenAPI entry. Contains no implementation. */
export interface Route {
  method: Method
  /** Parameters in braces: `/tasks/{task_id}`. */
  path: `/${string}`
  /** `nvidia`: path, fields and values are NVIDIA Polar's, and its clients must work. Default of `route()`: `polar`. */
  origin: 'nvidia' | 'polar'
  tag: 'tasks' | 'sessions' | 'nodes' | 'leases' | 'uploads' | 'policy' | 'callbacks' | 'server'
  summary: string
  description?: string
  scopes: readonly Scope[]
  params?: z.ZodObject
  query?: z.ZodObject
  body?: RequestBody
  /** Field of the body with the node that the request acts for: `outcome.nodeId`. A `node_id` in the path needs no entry. */
  nodeField?: string
  answer: AnswerBody
  errors?: readonly ErrorStatus[]
  /** Accepts an `Idempotency-Key`, the same for all tries of one request. Our client sends one. */
  takesKey?: boolean
  /** A repeated request has no further effect, so a client may retry without a response. Default of `route()`: true. */
  isIdempotent: boolean
  /** Details for the OpenAPI description. */
  idempotency?: string
  /** Checked against the schemas, and shown in OpenAPI. */
  examples?: { body?: unknown; answer?: unknown }
}

export type RouteTable = Readonly<Record<string, Route>>

type Defaults = Pick<Route, 'origin' | 'isIdempotent'>

/** Keeps the literal types, and makes the compiler check the parameters against the path. */
export function route<const R extends Omit<Route, keyof Defaults> & Partial<Defaults>>(
  value: R & ParamsOf<R>,
): R & Defaults {
  return { origin: 'polar', isIdempotent: true, ...value }
}

type NamesIn<Path extends string> = Path extends `${string}{${infer Name}}${infer Rest}` ? Name | NamesIn<Rest> : never
type ParamsOf<R extends Pick<Route, 'path'>> = [NamesIn<R['path']>] extends [never]
  ? { params?: undefined }
  : { params: z.ZodObject<Record<NamesIn<R['path']>, z.ZodType>> }

export const KIB = 1024
export const MIB = 1024 * KIB

export function json<S extends z.ZodType>(schema: S) {
  return { kind: 'json', schema } as const
}

export function jsonBody<S extends z.ZodType>(schema: S, maxBytes: number = MIB) {
  return { kind: 'json', schema, maxBytes } as const
}

type Shape<S> = S extends z.ZodType ? S : never

/** Types for handlers: validated, with defaults filled in. */
export type Params<R extends Route> = R extends { params: infer S } ? z.output<Shape<S>> : Record<string, never>
export type Query<R extends Route> = R extends { query: infer S } ? z.output<Shape<S>> : Record<string, never>
export type Body<R extends Route> = R extends { body: { kind: 'json'; isRaw: true } }
  ? Buffer<ArrayBuffer>
  : R extends { body: { kind: 'json'; schema: infer S } }
    ? z.output<Shape<S>>
    : R extends { body: { kind: 'bytes' } }
      ? ReadableStream<Uint8Array>
      : undefined

/** Types for clients: fields with a default are optional. */
export type ParamsInput<R extends Route> = R extends { params: infer S } ? z.input<Shape<S>> : undefined
export type QueryInput<R extends Route> = R extends { query: infer S } ? z.input<Shape<S>> : undefined
export type BodyInput<R extends Route> = R extends { body: { kind: 'json'; schema: infer S } }
  ? z.input<Shape<S>>
  : R extends { body: { kind: 'bytes' } }
    ? Uint8Array<ArrayBuffer>
    : undefined

/** One item of a response: the whole body, a line, or an event. */
export type Answer<R extends Route> = R['answer'] extends { schema: infer S } ? z.output<Shape<S>> : Uint8Array
export type AnswerInput<R extends Route> = R['answer'] extends { schema: infer S } ? z.input<Shape<S>> : Uint8Array
