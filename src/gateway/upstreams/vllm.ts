import * as z from 'zod'
import type { TurnRequest } from '../../model/turn.ts'
import { readAnswer } from '../chat-wire/chat-answer.ts'
import { renderChatBody } from '../chat-wire/chat-request.ts'
import { contextSize, EngineHttp, readRefusal, refusalError, type EngineHttpOptions } from '../chat-wire/engine-http.ts'
import type { Upstream, UpstreamReply } from './upstream.ts'

export interface VllmOptions extends EngineHttpOptions {
  /** The name to ask for; absent passes on the harness's own. */
  model?: string
}

/** vLLM's OpenAI server, from 0.10.2; token ids in streams are complete from 0.13. Also the tiny engine. */
export function createVllm(options: VllmOptions): Upstream {
  const http = new EngineHttp(options)

  async function countTokens(request: TurnRequest, signal: AbortSignal): Promise<number> {
    const forced = { ...forcedFields(request, options.model), max_tokens: 1, max_completion_tokens: 1 }
    const body = renderChatBody(request, forced)
    const { token_ids } = await http.ask('/v1/chat/completions/render', Rendered, { body, signal })
    return token_ids.length
  }

  /** How many tokens an answer may have beside this prompt; undefined when the refusal was about something else. */
  async function findRoom(message: string, request: TurnRequest, signal: AbortSignal): Promise<number | undefined> {
    const size = contextSize(message)
    if (size === undefined || request.sampling.maxTokens === undefined) return undefined
    const counted = /prompt contains (?:at least )?(\d+) (?:input )?tokens/i.exec(message)?.[1]
    const prompt = counted === undefined ? await countTokens(request, signal).catch(() => size) : Number(counted)
    return prompt < size ? size - prompt : undefined
  }

  return {
    kind: 'vllm',

    async send(request, { signal }): Promise<UpstreamReply> {
      const forced = forcedFields(request, options.model)
      const accept = request.stream ? 'text/event-stream' : 'application/json'
      const post = () => http.call('/v1/chat/completions', { body: renderChatBody(request, forced), accept, signal })
      let response = await post()
      if (response.statusCode === 400) {
        const refusal = await readRefusal(response)
        const room = await findRoom(refusal.message, request, signal)
        if (room === undefined) throw refusalError(refusal, http.base)
        // The engine refuses an answer limit that does not fit instead of lowering it, and harnesses ask for far more
        // than a small context holds.
        Object.assign(forced, { max_tokens: room, max_completion_tokens: room })
        response = await post()
      }
      if (response.statusCode !== 200) throw refusalError(await readRefusal(response), http.base)
      return { forced, events: readAnswer(response, { base: http.base, signal }) }
    },

    countTokens,
    listModels: (signal) => http.listModels(signal),
    contextTokens: (model, signal) => http.contextTokens(model, signal),
    [Symbol.asyncDispose]: () => http[Symbol.asyncDispose](),
  }
}

const Rendered = z.looseObject({ token_ids: z.array(z.int()) })

/**
 * What capture needs, whatever the harness asked for. `include_reasoning: false` would hide ids and log probabilities
 * altogether; `top_logprobs: 0` is the cheapest that still reports the sampled token; an empty tool list is refused.
 */
function forcedFields(request: TurnRequest, model: string | undefined): Record<string, unknown> {
  const { body } = request.wire
  return {
    ...(model === undefined ? {} : { model }),
    return_token_ids: true,
    logprobs: true,
    top_logprobs: request.logprobs ? (body['top_logprobs'] ?? 0) : 0,
    include_reasoning: true,
    ...(request.stream
      ? { stream_options: { ...(body['stream_options'] as object | null), include_usage: true } }
      : {}),
    ...(Array.isArray(body['tools']) && body['tools'].length === 0 ? { tools: null, tool_choice: null } : {}),
  }
}
