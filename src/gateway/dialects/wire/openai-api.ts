import type * as z from 'zod'
import { firstIssue, formatPath } from '../../../lib/json/first-issue.ts'
import { RolloutError, type Failure } from '../../../model/failure.ts'
import type { WireFields } from '../../wire-event.ts'
import type { Dialect, RenderedError, RequestContext } from '../dialect.ts'

/*
 * The parts that Chat Completions and Responses have in common: errors, models, and comments in streams.
 */

/** SSE parsers ignore this frame. */
export const SSE_COMMENT = ': keep-alive\n\n'

/**
 * Whether an SSE comment restarts the idle timer of a client of an OpenAI API. OpenAI's SDKs ignore comments, and only
 * their connections have a timer, which every byte restarts. Qwen Code uses that SDK, but its own timer counts events only.
 */
export function acceptsComments(headers: RequestContext['headers']): boolean {
  return headers['x-stainless-lang'] !== undefined && !String(headers['user-agent']).startsWith('QwenCode/')
}

/** Reports the first problem in OpenAI's format: one message, one `param`. */
export function malformed(error: z.ZodError, base: readonly PropertyKey[] = []): RolloutError {
  const { path, message } = firstIssue(error)
  const param = formatPath([...base, ...path])
  return new RolloutError('request.malformed', `Invalid value${param && ` for '${param}'`}: ${message}`, {
    param: param || undefined,
  })
}

/** `code` replaces the code of the failure. */
export function renderError(failure: Failure, code?: string): RenderedError & { body: { error: OpenaiError } } {
  const { status, retryAfterSeconds, message, param = null } = failure
  return {
    status,
    headers: retryAfterSeconds === undefined ? {} : { 'retry-after': String(retryAfterSeconds) },
    body: {
      error: { message, type: errorType(status), param, code: code ?? ERROR_CODES[failure.code] ?? failure.code },
    },
  }
}

interface OpenaiError {
  message: string
  type: string
  param: string | null
  code: string
}

/** Codes that clients of these APIs check. Other failures keep the gateway's code. */
const ERROR_CODES: Readonly<Record<string, string>> = {
  'request.context-overflow': 'context_length_exceeded',
  'request.unauthorized': 'invalid_api_key',
  'upstream.rate-limited': 'rate_limit_exceeded',
}

function errorType(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 429) return 'rate_limit_error'
  return status < 500 ? 'invalid_request_error' : 'server_error'
}

function renderModel(model: string, created: number): WireFields {
  return { id: model, object: 'model', created, owned_by: 'polar' }
}

export const openaiModels: Pick<Dialect, 'renderModel' | 'renderModels'> = {
  renderModel,
  renderModels: (models, created) => ({ object: 'list', data: models.map((model) => renderModel(model, created)) }),
}
