import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { textOf } from '../../model/message.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { openaiFields as fields } from './wire/chat-fields.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { createEngineUpstream } from './wire/engine-upstream.ts'
import type { ProbeSubject } from './wire/probe.ts'
import { sendChat } from './wire/send-chat.ts'
import type { Capabilities, Upstream } from './upstream.ts'

const ASSUMED: Capabilities = {
  idsOut: false,
  idsInStreams: 'none',
  tokenIn: 'none',
  render: 'none',
  weightVersion: false,
  logprobs: 'unknown',
}

/** Defaults of OpenAI's API. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 1, topP: 1 }

/**
 * Any server with the Chat Completions API: OpenAI itself, hosted models, proxies. Sends only the fields of `openaiFields`
 * from the harness's request, because many servers reject unknown fields. Turns are text only.
 */
export function createOpenai(options: EngineOptions): Upstream {
  const http = new EngineHttp(options)
  return createEngineUpstream(http, options, {
    kind: 'openai',
    requestsLogprobs: false,
    assumed: ASSUMED,
    readVersion: () => Promise.resolve(undefined),
    send: (request, call) =>
      sendChat(http, request, call, {
        fields,
        forced: forcedFields(request, options.model),
        documentedSampling: DOCUMENTED_SAMPLING,
      }),
    estimateTokens,
    renderings: [],
    tokenIn: [],
    knownStreams: () => undefined,
    advice: ADVICE,
  })
}

const ADVICE: ProbeSubject['advice'] = {
  idsOut: 'Use vLLM, SGLang or llama.cpp for training; recorded sessions of this server can become SFT data.',
  sampling: '',
  tools: 'Choose a model that supports tools.',
  streams: '',
  tokenIn: '',
  render: '',
  weightVersion: 'Set it through the control API of the gateway.',
}

/** Requests usage in streams, the only token count. Removes the two filters, which are not part of the API. */
function forcedFields(request: TurnRequest, model: string | undefined): Record<string, unknown> {
  return {
    ...(model === undefined ? {} : { model }),
    ...(request.stream ? { stream_options: { include_usage: true } } : {}),
    ...(request.wire.api === 'openai-chat' ? {} : { top_k: undefined, min_p: undefined }),
  }
}

/** Assumes four bytes per token, about the average of byte-pair encodings for English and JSON. */
export function estimateTokens(request: TurnRequest): number {
  const texts = request.messages.map((message) => {
    const calls = message.role === 'assistant' ? message.toolCalls : []
    return [textOf(message), ...calls.map((call) => call.name + call.arguments)].join('')
  })
  const tools = request.tools.length === 0 ? '' : JSON.stringify(request.tools)
  const overhead = 4 * (request.messages.length + 1)
  return overhead + Math.ceil(Buffer.byteLength(texts.join('') + tools) / 4)
}

const OpenaiConfig = z.strictObject({ kind: z.literal('openai'), ...engineConfigFields })

export const openai: Plug<typeof OpenaiConfig, unknown, Upstream> = {
  config: OpenaiConfig,
  create: (config) => createOpenai(toEngineOptions(config)),
}
