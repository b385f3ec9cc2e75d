import type { Agent, Dispatcher } from 'undici'
import * as z from 'zod'
import { parseJson } from '../../../lib/json/json-text.ts'
import { RolloutError, type FailureCode } from '../../../model/failure.ts'
import { ByteJoiner } from './fast/read-fast.ts'
import { undici } from '../../../lib/net/undici.ts'

export interface EngineHttpOptions {
  /** URL of the engine; `/v1` at the end is optional. */
  baseUrl: string
  apiKey?: string
  /** Limit of the time without data, before and between bytes. */
  idleTimeoutMs?: number
}

export interface EngineCall {
  /** Absent: a GET. */
  body?: string
  accept?: string
  signal: AbortSignal
}

/** HTTP client of one engine. Converts every error to a RolloutError. */
export class EngineHttp implements AsyncDisposable {
  /** Without `/v1` and without a slash at the end. */
  readonly base: string
  readonly joiner = new ByteJoiner()
  readonly #origin: string
  readonly #prefix: string
  readonly #agent: Agent
  readonly #headers: Readonly<Record<string, string>>

  constructor(options: EngineHttpOptions) {
    this.base = options.baseUrl.replace(/\/+$/, '').replace(/\/v1$/, '')
    const { origin, pathname } = new URL(this.base)
    this.#origin = origin
    this.#prefix = pathname.replace(/\/$/, '')
    const idleTimeoutMs = options.idleTimeoutMs ?? 15 * 60_000
    this.#agent = new (undici().Agent)({ headersTimeout: idleTimeoutMs, bodyTimeout: idleTimeoutMs, connections: null })
    this.#headers = {
      'content-type': 'application/json',
      ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }),
    }
  }

  /** Returns the response with any status. */
  async call(
    path: string,
    { body, accept = 'application/json', signal }: EngineCall,
  ): Promise<Dispatcher.ResponseData> {
    try {
      return await this.#agent.request({
        origin: this.#origin,
        path: this.#prefix + path,
        method: body === undefined ? 'GET' : 'POST',
        headers: { ...this.#headers, accept },
        body,
        signal,
      })
    } catch (error) {
      throw toRolloutError(error, this.base)
    }
  }

  /** Requests a short JSON answer. */
  async query<T>(path: string, schema: z.ZodType<T>, call: EngineCall): Promise<T> {
    const response = await this.call(path, call)
    if (response.statusCode !== 200) throw rejectionError(await readRejection(response), this.base)
    const body = schema.safeParse(parseJson(await response.body.text().catch(() => '')))
    if (body.success) return body.data
    throw new RolloutError('upstream.failed', `The engine at ${this.base} answered ${path} in an unknown format.`)
  }

  /** As `query`, for an endpoint that some versions lack: returns undefined when it is missing or the answer differs. */
  async queryOptional<T>(path: string, schema: z.ZodType<T>, call: EngineCall): Promise<T | undefined> {
    const response = await this.call(path, call)
    const text = await response.body.text().catch(() => '')
    if (response.statusCode >= 500 && response.statusCode !== 501) {
      throw rejectionError(toRejection(response, text), this.base)
    }
    return response.statusCode === 200 ? schema.safeParse(parseJson(text)).data : undefined
  }

  async models(signal: AbortSignal): Promise<ModelCard[]> {
    const { data } = await this.query('/v1/models', ModelList, { signal })
    return data
  }

  async listModels(signal: AbortSignal): Promise<string[]> {
    return (await this.models(signal)).map((model) => model.id)
  }

  /** Limit of prompt and answer together; undefined when the engine does not report it. */
  async contextTokens(model: string, signal: AbortSignal): Promise<number | undefined> {
    const card = (await this.models(signal)).find(({ id }) => id === model)
    return card === undefined ? undefined : contextOf(card)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.destroy()
  }
}

const ModelCard = z.looseObject({
  id: z.string(),
  owned_by: z.string().nullish(),
  max_model_len: z.int().nullish(),
  /** llama.cpp reports the limit here. */
  meta: z.looseObject({ n_ctx: z.int().nullish() }).nullish(),
})
export type ModelCard = z.infer<typeof ModelCard>
const ModelList = z.looseObject({ data: z.array(ModelCard) })

export function contextOf(card: ModelCard): number | undefined {
  return card.max_model_len ?? card.meta?.n_ctx ?? undefined
}

export interface Rejection {
  status: number
  message: string
  retryAfterSeconds?: number
  param?: string
  /** Type and code of the error, as the engine reports them. */
  labels: readonly string[]
}

/** Most engines nest these fields in `error`; SGLang does not. */
const errorFields = {
  message: z.string(),
  param: z.string().nullish(),
  type: z.unknown(),
  code: z.unknown(),
}
const ErrorBody = z.union([
  z.looseObject({ error: z.looseObject(errorFields) }),
  z.looseObject(errorFields).transform((error) => ({ error })),
])

export async function readRejection(response: Dispatcher.ResponseData): Promise<Rejection> {
  return toRejection(response, await response.body.text().catch(() => ''))
}

function toRejection(response: Dispatcher.ResponseData, text: string): Rejection {
  const body = ErrorBody.safeParse(parseJson(text))
  const retryAfter = Number(response.headers['retry-after'])
  const error = body.success ? body.data.error : undefined
  return {
    status: response.statusCode,
    message: error?.message ?? (text.slice(0, 500) || `status ${response.statusCode}`),
    param: error?.param ?? undefined,
    labels: [error?.type, error?.code].filter((label) => typeof label === 'string'),
    retryAfterSeconds: retryAfter > 0 && Number.isFinite(retryAfter) ? retryAfter : undefined,
  }
}

export function rejectionError(rejection: Rejection, base: string): RolloutError {
  const { status, message, labels: _labels, ...fields } = rejection
  if (status === 400 && isOverflow(rejection)) return new RolloutError('request.context-overflow', message, fields)
  if (status >= 300 && status < 400) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered with a redirect (${status}).`)
  }
  if (isUnknownModel(rejection)) return new RolloutError('upstream.refused', message, { ...fields, status })
  // llama.cpp answers with a 500.
  if (status === 500 && UNSUPPORTED_MEDIA.test(message)) return new RolloutError('upstream.refused', message, fields)
  const code = status >= 500 && OUT_OF_MEMORY.test(message) ? 'upstream.out-of-memory' : rejectionCode(status)
  // An engine that rejects the gateway's key or path is misconfigured; the harness's key and path were valid.
  if (status === 401 || status === 403 || status === 404) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered ${status}: ${message}`, fields)
  }
  return new RolloutError(code, message, { ...fields, status })
}

function rejectionCode(status: number): FailureCode {
  if (status === 429) return 'upstream.rate-limited'
  if (status === 503) return 'upstream.overloaded'
  // A proxy whose engine is not running, or does not answer.
  if (status === 502 || status === 504) return 'upstream.unreachable'
  return status < 500 ? 'upstream.refused' : 'upstream.failed'
}

const UNSUPPORTED_MEDIA = /(?:image|audio|video)s? input is not supported/i

/** A 404 of vLLM, SGLang, llama.cpp or OpenAI. A missing path has another message. */
function isUnknownModel({ status, message, param, labels }: Rejection): boolean {
  if (status !== 404) return false
  return (
    param === 'model' || labels.includes('model_not_found') || /\bmodel\b.*(?:does not exist|not found)/i.test(message)
  )
}

/** Messages of CUDA, PyTorch and the engines. */
const OUT_OF_MEMORY = /out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED/i

/** Messages of vLLM, SGLang, llama.cpp and OpenAI. */
const OVERFLOW = [
  /maximum context length is (\d+) tokens/i,
  /exceeds (?:the )?model's maximum context length/i,
  /longer than the maximum model length/i,
  /longer than the model's context length/i,
  /exceeds the available context size/i,
]
const OVERFLOW_LABELS: ReadonlySet<string> = new Set(['exceed_context_size_error', 'context_length_exceeded'])

function isOverflow({ message, labels }: Rejection): boolean {
  return labels.some((label) => OVERFLOW_LABELS.has(label)) || OVERFLOW.some((wording) => wording.test(message))
}

export function toRolloutError(error: unknown, base: string): RolloutError {
  if (error instanceof RolloutError) return error
  const { code = '', name = '', message = '' } = error as { code?: string; name?: string; message?: string }
  if (name === 'AbortError' || code === 'UND_ERR_ABORTED')
    return new RolloutError('request.client-gone', 'The call was cancelled.')
  if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT' || name === 'TimeoutError') {
    return new RolloutError('upstream.timeout', `The engine at ${base} sent no data for too long.`, { cause: error })
  }
  if (code === 'ECONNREFUSED' || code === 'ENOTFOUND' || code === 'EAI_AGAIN' || code === 'UND_ERR_CONNECT_TIMEOUT') {
    return new RolloutError(
      'upstream.unreachable',
      `No engine answers at ${base} (${code}). Check that it is running.`,
      {
        cause: error,
      },
    )
  }
  return new RolloutError('upstream.reset', `The engine at ${base} broke the connection: ${message || name}`, {
    cause: error,
  })
}
