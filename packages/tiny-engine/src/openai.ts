import { EngineError } from './errors.ts'
import { choicesOf, isObject, type JsonObject, type Wire } from './wire.ts'

const SHARED: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/models', '/v1/models/', '/health'])

/** All accepted request fields. Others are rejected, as by hosted services. */
const KNOWN: ReadonlySet<string> = new Set(
  [
    'model messages stream stream_options temperature top_p n stop max_tokens max_completion_tokens seed logit_bias',
    'presence_penalty frequency_penalty logprobs top_logprobs tools tool_choice parallel_tool_calls response_format',
    'reasoning_effort user metadata store service_tier',
  ].flatMap((names) => names.split(' ')),
)

/** Chat Completions of a hosted service: text without ids or other training data. */
export function createOpenaiWire(): Wire {
  return {
    serves: (path) => SHARED.has(path),
    routes: new Map(),
    reasoningFields: ['reasoning_content'],
    losesHeldIds: false,
    masksByGrammar: false,
    lowersMaxTokens: false,
    toChatBody,
    shape: () => ({
      answer: ({ id, object, created, model, usage, ...rest }) => ({
        id,
        object,
        created,
        model,
        choices: choicesOf(rest).map(withoutIds),
        ...(usage === undefined ? {} : { usage }),
      }),
      chunk({ id, object, created, model, usage, ...rest }) {
        const choices = choicesOf(rest)
        const shown = choices.map(withoutIds)
        return { id, object, created, model, choices: shown, ...(usage === undefined ? {} : { usage }) }
      },
    }),
    toModelCard: ({ id, object, created }) => ({ id, object, created, owned_by: 'system' }),
    toErrorBody,
  }
}

function toChatBody(body: unknown): unknown {
  if (!isObject(body)) return body
  const unknown = Object.keys(body).find((name) => !KNOWN.has(name))
  if (unknown !== undefined) throw new EngineError(400, `Unrecognized request argument supplied: ${unknown}`)
  return body['logprobs'] === true ? { ...body, top_logprobs: body['top_logprobs'] ?? 0 } : body
}

function withoutIds({ token_ids: _ids, stop_reason: _reason, ...choice }: JsonObject): JsonObject {
  return choice
}

function toErrorBody({ message, param, status, overflow }: EngineError): string {
  const error = (text: string, code: string | null) => ({
    error: { message: text, type: status < 500 ? 'invalid_request_error' : 'server_error', param, code },
  })
  if (overflow === undefined) return JSON.stringify(error(message, null))
  const { prompt, output, context } = overflow
  if (output > context) {
    const text = `max_tokens is too large: ${output}. This model supports at most ${context} completion tokens, whereas you provided ${output}.`
    return JSON.stringify(error(text, 'invalid_value'))
  }
  const total = `you requested ${prompt + output} tokens (${prompt} in the messages, ${output} in the completion)`
  const text = `This model's maximum context length is ${context} tokens. However, ${total}. Please reduce the length of the messages or completion.`
  return JSON.stringify(error(text, 'context_length_exceeded'))
}
