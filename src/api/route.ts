import type * as z from 'zod'
import type { Loosened } from './loosen.ts'

/** What a token may be for. A route names those of which one is enough; a route that names none is open to everybody. */
export type Scope = 'trainer' | 'node' | 'read'

export type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

export type RequestBody =
  | {
      kind: 'json'
      schema: z.ZodType
      maxBytes: number
      /** Values in the whole body. Absent: MOST_VALUES. */
      maxValues?: number
      /**
       * The handler gets the bytes and checks them against the schema itself, in another thread: a body of this route may
       * take too long to parse on the event loop. The handler also authorizes the node that the body names.
       */
      isRaw?: true
      /**
       * Bodies of clients that were written for NVIDIA Polar: translated by this, then loosened (see loosen.ts), unless the
       * caller asks for strictness. Absent: the schema alone decides.
       */
      adapt?: (value: unknown) => Loosened
    }
  /** Raw, and never held in memory as a whole by the table's own code. */
  | { kind: 'bytes'; maxBytes: number }

/** Values that a JSON body may hold unless its route says otherwise: far more than any batch of tasks has. */
export const MOST_VALUES = 1_000_000

export type AnswerBody =
  | { kind: 'json'; schema: z.ZodType }
  /** One JSON value a line. `resumeBy` names the query field that takes the number of lines to leave out. */
  | { kind: 'ndjson'; schema: z.ZodType; resumeBy: string }
  /** Server-sent events whose data is JSON, each with an id to come back with in `Last-Event-ID`. */
  | { kind: 'sse'; schema: z.ZodType }
  | { kind: 'bytes' }

/** Statuses a route may answer with besides success; 400, 401, 403, 413, 415, 422 and 503 go without saying. */
export type ErrorStatus = 404 | 409 | 416 | 429

/**
 * One endpoint: the single source of its validation, its client, its page in OpenAPI. It says what goes over the wire
 * and who may ask; it knows nothing of how the answer is found.
 */
export interface Route {
  method: Method
  /** Parameters in braces: `/tasks/{task_id}`. */
  path: `/${string}`
  /** `nvidia`: paths, fields and words are NVIDIA Polar's, and clients written for it must work. */
  origin: 'nvidia' | 'polar'
  tag: 'tasks' | 'sessions' | 'nodes' | 'leases' | 'uploads' | 'callbacks' | 'server'
  summary: string
  description?: string
  scopes: readonly Scope[]
  params?: z.ZodObject
  query?: z.ZodObject
  body?: RequestBody
  /**
   * The field of the body that says for which node it speaks: `outcome.nodeId`. What is called `node_id` in the path
   * says so without this.
   */
  nodeField?: string
  answer: AnswerBody
  errors?: readonly ErrorStatus[]
  /** Takes an `Idempotency-Key`: the same for all tries of one call. Our client sends one. */
  takesKey?: boolean
  /** Asking twice does what asking once does, so a client may ask again when no answer came. */
  isIdempotent: boolean
  /** Why it is, or what to do where it is not. */
  idempotency?: string
  /** Checked against the schemas, and shown in OpenAPI. */
  examples?: { body?: unknown; answer?: unknown }
}

export type RouteTable = Readonly<Record<string, Route>>

/** Keeps the schemas' own types, and has the compiler compare parameters with the path. */
export function route<const R extends Route>(value: R & ParamsOf<R>): R {
  return value
}

type NamesIn<Path extends string> = Path extends `${string}{${infer Name}}${infer Rest}` ? Name | NamesIn<Rest> : never
type ParamsOf<R extends Route> = [NamesIn<R['path']>] extends [never]
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

/** As the one who answers gets it: checked, with the defaults filled in. */
export type Params<R extends Route> = R extends { params: infer S } ? z.output<Shape<S>> : Record<string, never>
export type Query<R extends Route> = R extends { query: infer S } ? z.output<Shape<S>> : Record<string, never>
export type Body<R extends Route> = R extends { body: { kind: 'json'; isRaw: true } }
  ? Buffer<ArrayBuffer>
  : R extends { body: { kind: 'json'; schema: infer S } }
    ? z.output<Shape<S>>
    : R extends { body: { kind: 'bytes' } }
      ? ReadableStream<Uint8Array>
      : undefined

/** As the one who asks may write it: what has a default may be left out. */
export type ParamsInput<R extends Route> = R extends { params: infer S } ? z.input<Shape<S>> : undefined
export type QueryInput<R extends Route> = R extends { query: infer S } ? z.input<Shape<S>> : undefined
export type BodyInput<R extends Route> = R extends { body: { kind: 'json'; schema: infer S } }
  ? z.input<Shape<S>>
  : R extends { body: { kind: 'bytes' } }
    ? Uint8Array<ArrayBuffer>
    : undefined

/** One item of an answer: the whole of it, a line, or an event. */
export type Answer<R extends Route> = R['answer'] extends { schema: infer S } ? z.output<Shape<S>> : Uint8Array
export type AnswerInput<R extends Route> = R['answer'] extends { schema: infer S } ? z.input<Shape<S>> : Uint8Array
