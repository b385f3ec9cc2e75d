import * as z from 'zod'
import { isAtLeast } from '../../lib/versions.ts'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { DefaultSampling, HiddenDefault } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { readAnswer } from './wire/chat-answer.ts'
import { vllmFields as fields } from './wire/chat-fields.ts'
import { requestedTopLogprobs, renderChatBody } from './wire/chat-request.ts'
import { findHiddenDefaults } from './wire/compare-sampling.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { logprobModeOf, toEngineSampling } from './wire/engine-sampling.ts'
import { postChat } from './wire/post-chat.ts'
import { probeEngine, probeRequest, samplingFields, type ProbeSubject, type SamplingDefaults } from './wire/probe.ts'
import type { Capabilities, SendOptions, Upstream, UpstreamReply } from './upstream.ts'

export type VllmOptions = EngineOptions

/** A current version. A probe detects the differences of older ones. */
const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'complete',
  tokenInChat: true,
  render: true,
  tokenise: true,
  weightVersion: false,
  logprobs: 'raw',
}

/** Defaults of vLLM, unless the model's generation_config overrides them. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 1, topP: 1, topK: 0, minP: 0 }

/** vLLM's OpenAI server, from 0.10.2. Also the tiny engine. */
export function createVllm(options: VllmOptions): Upstream {
  const http = new EngineHttp(options)
  let capabilities: Capabilities = { ...ASSUMED, ...options.capabilities }

  /** Whether the request is streamed. A stream that loses ids is requested whole. */
  const streams = (request: TurnRequest): boolean =>
    request.stream && (capabilities.idsInStreams === 'complete' || !capabilities.idsOut)

  async function sendAs(
    request: TurnRequest,
    stream: boolean,
    { signal, promptIds, promptIdCache, weights }: SendOptions,
  ): Promise<UpstreamReply> {
    const forced = forcedFields(request, stream, options.model)
    if (promptIds !== undefined) forced['kv_transfer_params'] = { prompt_token_ids: Array.from(promptIds) }
    const count = async (): Promise<number> => promptIds?.length ?? countTokens(request, signal)
    const { response, dropped } = await postChat(http, { request, forced, fields, stream, signal, countTokens: count })
    const logprobMode = logprobModeOf(request, capabilities)
    const fast = promptIdCache && { promptIdCache, joiner: http.joiner }
    const reading = { base: http.base, signal, forStream: request.stream, logprobMode, weights, fast }
    const answer = readAnswer(response, reading)
    // A prompt may have a hundred thousand ids, and the log contains them already.
    if (promptIds !== undefined) forced['kv_transfer_params'] = { prompt_token_ids: `${promptIds.length} ids` }
    const sampling = toEngineSampling(request, { forced, fields }, DOCUMENTED_SAMPLING, capabilities)
    return { forced, dropped, sampling, ...answer }
  }

  function render(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const forced = { ...forcedFields(request, request.stream, options.model), max_tokens: 1, max_completion_tokens: 1 }
    const { text: body } = renderChatBody(request, forced, fields)
    return http.queryOptional('/v1/chat/completions/render', Rendered, { body, signal })
  }

  /**
   * A rendered request includes its sampling parameters, with those of the model's generation_config. From 0.30 on only
   * servers with --enable-scale-out render; then `/v1/responses` reports two parameters, and answers with a fixed seed show
   * whether there are others.
   */
  async function readDefaults(model: string, signal: AbortSignal): Promise<SamplingDefaults | undefined> {
    const request = probeRequest({ model, isPlain: true })
    const { text: body } = renderChatBody(request, forcedFields(request, false, options.model), fields)
    const rendered = await http.queryOptional('/v1/chat/completions/render', RenderedSampling, { body, signal })
    if (rendered !== undefined) return rendered
    const sample = (parameters: Readonly<Record<string, number>>): Promise<string | undefined> =>
      http.queryOptional('/v1/chat/completions', Sampled, {
        body: JSON.stringify({ ...SEEDED_REQUEST, model, ...parameters }),
        signal,
      })
    const hidden = await findHiddenDefaults(sample)
    if (hidden === undefined) return undefined
    const short = JSON.stringify({ model, input: 'Hello.', max_output_tokens: 1, store: false })
    const reported = await http.queryOptional('/v1/responses', ReportedSampling, { body: short, signal })
    return toDefaults(hidden, reported ?? {})
  }

  /** Ignores `tool_choice` and `reasoning_effort`, so the ids may differ slightly from the prompt of a chat request. */
  function tokeniseChat(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const { text: body } = renderChatBody(request, forcedFields(request, request.stream, options.model), fields)
    return http.queryOptional('/tokenize', Tokenised, { body, signal })
  }

  async function tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array> {
    const rendered = capabilities.render ? await render(request, signal) : undefined
    const ids = rendered ?? (await tokeniseChat(request, signal))
    if (ids !== undefined) return ids
    throw new RolloutError('upstream.refused', `The engine at ${http.base} cannot tokenise this conversation.`)
  }

  async function countTokens(request: TurnRequest, signal: AbortSignal): Promise<number> {
    return (await tokenise(request, signal)).length
  }

  return {
    kind: 'vllm',
    url: http.base,
    get capabilities() {
      return capabilities
    },
    send: (request, sendOptions) => sendAs(request, streams(request), sendOptions),
    tokenise,
    countTokens,
    listModels: (signal) => http.listModels(signal),
    contextTokens: (model, signal) => http.contextTokens(model, signal),
    async probe(signal) {
      const report = await probeEngine(
        {
          kind: 'vllm',
          http,
          model: options.model,
          requestsLogprobs: true,
          assumed: ASSUMED,
          readVersion: async () => (await http.queryOptional('/version', Version, { signal }))?.version,
          send: (request, sendOptions) => sendAs(request, request.stream, sendOptions),
          readDefaults,
          render: { name: '/v1/chat/completions/render', isPrompt: true, query: render },
          tokenise: { name: '/tokenize', isPrompt: true, query: tokeniseChat },
          knownStreams,
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

const Rendered = z.looseObject({ token_ids: z.array(z.int()) }).transform((body) => Int32Array.from(body.token_ids))
const RenderedSampling = z
  .looseObject({ sampling_params: z.looseObject(samplingFields) })
  .transform((body) => body.sampling_params)
/** Several short answers with random tokens. */
const SEEDED_REQUEST = {
  messages: [{ role: 'user', content: 'Write random letters and digits, in no order.' }],
  max_tokens: 8,
  n: 8,
  seed: 7,
  return_token_ids: true,
}
/** The answers as one text that can be compared. */
const Sampled = z
  .looseObject({
    choices: z.array(z.looseObject({ token_ids: z.array(z.int()).nullish(), message: z.unknown() })).min(1),
  })
  .transform(({ choices }) => JSON.stringify(choices.map(({ token_ids: ids, message }) => ids ?? message)))
const ReportedSampling = z.looseObject({ temperature: z.number(), top_p: z.number() })

/** Parameters without a hidden default are neutral. Hidden ones have the value that the server reports, or none. */
function toDefaults(
  hidden: readonly HiddenDefault[],
  { temperature, top_p: topP }: { temperature?: number; top_p?: number },
): SamplingDefaults {
  const known = (name: HiddenDefault, neutral: number, reported?: number): number | undefined =>
    hidden.includes(name) ? reported : neutral
  return {
    temperature: known('temperature', 1, temperature),
    top_p: known('topP', 1, topP),
    top_k: known('topK', 0),
    min_p: known('minP', 0),
    hidden: hidden.filter(
      (name) => !(name === 'temperature' && temperature !== undefined) && !(name === 'topP' && topP !== undefined),
    ),
  }
}
const Tokenised = z.looseObject({ tokens: z.array(z.int()) }).transform((body) => Int32Array.from(body.tokens))
const Version = z.looseObject({ version: z.string() })

/** Until 0.13 a parser that delayed text dropped the chunk with its ids. A short probe may not detect this. */
function knownStreams(version: string | undefined): ReturnType<ProbeSubject['knownStreams']> {
  if (version === undefined || isAtLeast(version, '0.13')) return undefined
  return { idsInStreams: 'lossy', because: `${version}: parsers of tools and reasoning drop ids in streams` }
}

const ADVICE: ProbeSubject['advice'] = {
  idsOut: 'return_token_ids requires vLLM 0.10.2; a proxy in front of it must relay unknown fields.',
  sampling: 'Start the server with --generation-config vllm to ignore the settings of the model.',
  tools: 'Start the server with --enable-auto-tool-choice --tool-call-parser NAME.',
  streams: 'vLLM 0.13 or newer streams all ids.',
  tokenIn: 'vLLM 0.27 or newer accepts ids in chat (not with VLLM_USE_RUST_FRONTEND).',
  render: 'vLLM 0.15 or newer renders a whole chat request.',
  weightVersion: 'vLLM never reports it; set it through the control API of the gateway.',
}

/**
 * Fields that capture needs, independent of the harness's request. `include_reasoning: false` would hide all ids and log
 * probabilities; `top_logprobs: 0` is the cheapest value that reports the sampled token.
 */
function forcedFields(request: TurnRequest, stream: boolean, model: string | undefined): Record<string, unknown> {
  return {
    ...(model === undefined ? {} : { model }),
    return_token_ids: true,
    logprobs: true,
    top_logprobs: requestedTopLogprobs(request),
    include_reasoning: true,
    ...(stream ? { stream_options: { include_usage: true } } : {}),
    ...(request.stream && !stream ? { stream: false, stream_options: null } : {}),
  }
}

const VllmConfig = z.strictObject({ kind: z.literal('vllm'), ...engineConfigFields })

export const vllm: Plug<typeof VllmConfig, unknown, Upstream> = {
  config: VllmConfig,
  create: (config) => createVllm(toEngineOptions(config)),
}
