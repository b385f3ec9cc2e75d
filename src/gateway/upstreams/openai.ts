import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import { textOf } from '../../model/message.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { readAnswer } from './wire/chat-answer.ts'
import { openaiFields as fields } from './wire/chat-fields.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { logprobModeOf, toEngineSampling } from './wire/engine-sampling.ts'
import { postChat } from './wire/post-chat.ts'
import { probeEngine, type ProbeSubject } from './wire/probe.ts'
import type { Capabilities, SendOptions, Upstream, UpstreamReply } from './upstream.ts'

const ASSUMED: Capabilities = {
  idsOut: false,
  idsInStreams: 'none',
  tokenInChat: false,
  render: false,
  tokenise: false,
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
  let capabilities: Capabilities = { ...ASSUMED, ...options.capabilities }

  async function send(request: TurnRequest, { signal, weights }: SendOptions): Promise<UpstreamReply> {
    const forced = forcedFields(request, options.model)
    const countTokens = () => Promise.resolve(estimateTokens(request))
    const post = { request, forced, fields, stream: request.stream, signal, countTokens }
    const { response, dropped } = await postChat(http, post)
    const logprobMode = logprobModeOf(request, capabilities)
    const sampling = toEngineSampling(request, post, DOCUMENTED_SAMPLING, capabilities)
    return {
      forced,
      dropped,
      sampling,
      ...readAnswer(response, { base: http.base, signal, forStream: request.stream, weights, logprobMode }),
    }
  }

  return {
    kind: 'openai',
    url: http.base,
    get capabilities() {
      return capabilities
    },
    send,
    tokenise: () => Promise.reject(new RolloutError('upstream.refused', `The server at ${http.base} cannot tokenise.`)),
    countTokens: async (request) => estimateTokens(request),
    listModels: (signal) => http.listModels(signal),
    contextTokens: (model, signal) => http.contextTokens(model, signal),
    async probe(signal) {
      const report = await probeEngine(
        {
          kind: 'openai',
          http,
          model: options.model,
          requestsLogprobs: false,
          assumed: ASSUMED,
          readVersion: () => Promise.resolve(undefined),
          send,
          knownStreams: () => undefined,
          advice: ADVICE,
        },
        signal,
      )
      capabilities = { ...report.capabilities, ...options.capabilities }
      return report
    },
    [Symbol.asyncDispose]: () => http[Symbol.asyncDispose](),
  }
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
