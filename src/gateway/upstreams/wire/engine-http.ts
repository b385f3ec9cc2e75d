import { Agent, type Dispatcher } from 'undici'
import * as z from 'zod'
import { RolloutError, type FailureCode } from '../../../model/failure.ts'
import { ByteJoiner } from './fast/read-fast.ts'

export interface EngineHttpOptions {
  /** Where the engine listens; `/v1` at the end is optional. */
  baseUrl: string
  apiKey?: string
  /** Longest silence of the engine, before and between bytes. */
  idleTimeoutMs?: number
}

export interface EngineCall {
  /** Absent: a GET. */
  body?: string
  accept?: string
  signal: AbortSignal
}

/** The way to one engine. What goes wrong on it comes out as a RolloutError with its class. */
export class EngineHttp implements AsyncDisposable {
  /** Without `/v1` and without a slash at the end. */
  readonly base: string
  /** For answers that came in pieces. */
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
    this.#agent = new Agent({ headersTimeout: idleTimeoutMs, bodyTimeout: idleTimeoutMs, connections: null })
    this.#headers = {
      'content-type': 'application/json',
      ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }),
    }
  }

  /** The response whatever its status. */
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

  /** A question with a short answer. */
  async ask<T>(path: string, schema: z.ZodType<T>, question: EngineCall): Promise<T> {
    const response = await this.call(path, question)
    if (response.statusCode !== 200) throw refusalError(await readRefusal(response), this.base)
    const body = schema.safeParse(parseJson(await response.body.text().catch(() => '')))
    if (body.success) return body.data
    throw new RolloutError('upstream.failed', `The engine at ${this.base} does not answer ${path} as expected.`)
  }

  /** The same of an endpoint that not every version has: undefined when this one has it not, or answers otherwise. */
  async askIfThere<T>(path: string, schema: z.ZodType<T>, question: EngineCall): Promise<T | undefined> {
    const response = await this.call(path, question)
    const text = await response.body.text().catch(() => '')
    if (response.statusCode >= 500 && response.statusCode !== 501) {
      throw refusalError(toRefusal(response, text), this.base)
    }
    return response.statusCode === 200 ? schema.safeParse(parseJson(text)).data : undefined
  }

  async models(signal: AbortSignal): Promise<ModelCard[]> {
    const { data } = await this.ask('/v1/models', ModelList, { signal })
    return data
  }

  async listModels(signal: AbortSignal): Promise<string[]> {
    return (await this.models(signal)).map((model) => model.id)
  }

  /** Prompt and answer together; undefined when the engine does not say. */
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
  /** llama.cpp's place for it. */
  meta: z.looseObject({ n_ctx: z.int().nullish() }).nullish(),
})
export type ModelCard = z.infer<typeof ModelCard>
const ModelList = z.looseObject({ data: z.array(ModelCard) })

export function contextOf(card: ModelCard): number | undefined {
  return card.max_model_len ?? card.meta?.n_ctx ?? undefined
}

/** An answer of the engine that is none. */
export interface Refusal {
  status: number
  message: string
  retryAfterSeconds?: number
  param?: string
  /** The engine's own words for what went wrong. */
  labels: readonly string[]
}

/** Most engines put it below `error`; SGLang does not. */
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

export async function readRefusal(response: Dispatcher.ResponseData): Promise<Refusal> {
  return toRefusal(response, await response.body.text().catch(() => ''))
}

function toRefusal(response: Dispatcher.ResponseData, text: string): Refusal {
  const body = ErrorBody.safeParse(parseJson(text))
  const retryAfter = Number(response.headers['retry-after'])
  const error = body.success ? body.data.error : undefined
  return {
    status: response.statusCode,
    message: error?.message ?? (text.slice(0, 500) || `status ${response.statusCode}`),
    param: error?.param ?? undefined,
    labels: [error?.type, error?.code].filter((label) => typeof label === 'string'),
    ...(Number.isFinite(retryAfter) && retryAfter > 0 ? { retryAfterSeconds: retryAfter } : {}),
  }
}

export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export function refusalError(refusal: Refusal, base: string): RolloutError {
  const { status, message, labels: _labels, ...fields } = refusal
  if (status === 400 && isOverflow(refusal)) return new RolloutError('request.context-overflow', message, fields)
  if (status >= 300 && status < 400) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered with a redirect (${status}).`)
  }
  const code = status >= 500 && OUT_OF_MEMORY.test(message) ? 'upstream.out-of-memory' : refusalCode(status)
  // An engine that rejects our own key or path is misconfigured; the harness's key and path were right.
  if (status === 401 || status === 403 || status === 404) {
    return new RolloutError('upstream.failed', `The engine at ${base} answered ${status}: ${message}`, fields)
  }
  return new RolloutError(code, message, { ...fields, status })
}

function refusalCode(status: number): FailureCode {
  if (status === 429) return 'upstream.rate-limited'
  if (status === 503) return 'upstream.overloaded'
  return status < 500 ? 'upstream.refused' : 'upstream.failed'
}

/** In CUDA's, PyTorch's and the engines' words. */
const OUT_OF_MEMORY = /out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED/i

/** In vLLM's, SGLang's, llama.cpp's and OpenAI's words. */
const OVERFLOW = [
  /maximum context length is (\d+) tokens/i,
  /exceeds (?:the )?model's maximum context length/i,
  /longer than the maximum model length/i,
  /longer than the model's context length/i,
  /exceeds the available context size/i,
]
const OVERFLOW_LABELS: ReadonlySet<string> = new Set(['exceed_context_size_error', 'context_length_exceeded'])

function isOverflow({ message, labels }: Refusal): boolean {
  return labels.some((label) => OVERFLOW_LABELS.has(label)) || OVERFLOW.some((wording) => wording.test(message))
}

/** What a socket or client threw, with its boundary. */
export function toRolloutError(error: unknown, base: string): RolloutError {
  if (error instanceof RolloutError) return error
  const { code = '', name = '', message = '' } = error as { code?: string; name?: string; message?: string }
  if (name === 'AbortError' || code === 'UND_ERR_ABORTED')
    return new RolloutError('request.client-gone', 'The call was cancelled.')
  if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT' || name === 'TimeoutError') {
    return new RolloutError('upstream.timeout', `The engine at ${base} was silent for too long.`, { cause: error })
  }
  if (code === 'ECONNREFUSED' || code === 'ENOTFOUND' || code === 'EAI_AGAIN' || code === 'UND_ERR_CONNECT_TIMEOUT') {
    return new RolloutError('upstream.unreachable', `No engine answers at ${base} (${code}); is it running?`, {
      cause: error,
    })
  }
  return new RolloutError('upstream.reset', `The engine at ${base} broke the connection: ${message || name}`, {
    cause: error,
  })
}
