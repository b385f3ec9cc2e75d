import * as z from 'zod'
import { isAtLeast } from '../../lib/versions.ts'
import type { Plug } from '../../lib/plug.ts'
import type { DefaultSampling, HiddenDefault } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { detectToolFormat, type ToolFormat } from './wire/answer-text.ts'
import { vllmFields as fields } from './wire/chat-fields.ts'
import { reasoningEffort, renderChatBody, templateSwitches } from './wire/chat-request.ts'
import { findHiddenDefaults } from './wire/compare-sampling.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { createEngineUpstream, type EngineSend } from './wire/engine-upstream.ts'
import { callingRequest, probeRequest, samplingFields, type ProbeSubject, type SamplingDefaults } from './wire/probe.ts'
import { captureFields, sendChat } from './wire/send-chat.ts'
import { sendCompletion } from './vllm-completion.ts'
import type { Capabilities, Upstream, UpstreamReply } from './upstream.ts'

export type VllmOptions = EngineOptions

/** A current version with its default flags. A probe detects the differences of older ones. */
const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'complete',
  tokenIn: 'chat',
  render: 'tokenize',
  weightVersion: false,
  logprobs: 'raw',
}

/** Defaults of vLLM, unless the model's generation_config overrides them. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 1, topP: 1, topK: 0, minP: 0 }

/** vLLM's OpenAI server, from 0.10.2. Also the tiny engine. */
export function createVllm(options: VllmOptions): Upstream {
  const http = new EngineHttp(options)
  const { model } = options

  function send(request: TurnRequest, call: EngineSend): Promise<UpstreamReply> {
    const { promptIds, promptIdCache, stream, capabilities } = call
    if (promptIds !== undefined && capabilities.tokenIn === 'completions') {
      const format = { model, fields, documentedSampling: DOCUMENTED_SAMPLING }
      return sendCompletion(http, request, { ...call, promptIds }, format)
    }
    return sendChat(http, request, call, {
      fields,
      forced: forcedFields(request, stream, model),
      promptField: (ids) => ({ kv_transfer_params: { prompt_token_ids: ids } }),
      documentedSampling: DOCUMENTED_SAMPLING,
      reading: { fast: promptIdCache && { promptIdCache, joiner: http.joiner } },
    })
  }

  function render(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const forced = { ...forcedFields(request, request.stream, model), max_tokens: 1, max_completion_tokens: 1 }
    const { text: body } = renderChatBody(request, forced, fields)
    return http.queryOptional('/v1/chat/completions/render', Rendered, { body, signal })
  }

  /**
   * A rendered request includes its sampling parameters, with those of the model's generation_config. From 0.30 on only
   * servers with --enable-scale-out render; then `/v1/responses` reports two parameters, and answers with a fixed seed show
   * whether there are others.
   */
  async function readDefaults(served: string, signal: AbortSignal): Promise<SamplingDefaults | undefined> {
    const request = probeRequest({ model: served, isPlain: true })
    const { text: body } = renderChatBody(request, forcedFields(request, false, model), fields)
    const rendered = await http.queryOptional('/v1/chat/completions/render', RenderedSampling, { body, signal })
    if (rendered !== undefined) return rendered
    const sample = (parameters: Readonly<Record<string, number>>): Promise<string | undefined> =>
      http.queryOptional('/v1/chat/completions', Sampled, {
        body: JSON.stringify({ ...SEEDED_REQUEST, model: served, ...parameters }),
        signal,
      })
    const hidden = await findHiddenDefaults(sample)
    if (hidden === undefined) return undefined
    const short = JSON.stringify({ model: served, input: 'Hello.', max_output_tokens: 1, store: false })
    const reported = await http.queryOptional('/v1/responses', ReportedSampling, { body: short, signal })
    return toDefaults(hidden, reported ?? {})
  }

  /** Does not read `reasoning_effort`, which chat turns into template variables, and always renders the tools. */
  function tokeniseChat(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const effort = reasoningEffort(request.reasoning)
    const switches = templateSwitches(request, fields)
    const forced = {
      ...forcedFields(request, request.stream, model),
      add_generation_prompt: true,
      ...(effort === undefined
        ? {}
        : {
            chat_template_kwargs: { reasoning_effort: effort, enable_thinking: effort !== 'none', ...switches },
          }),
    }
    const { text: body } = renderChatBody(request, forced, fields)
    return http.queryOptional('/tokenize', Tokenised, { body, signal })
  }

  async function readToolFormat(served: string, signal: AbortSignal): Promise<ToolFormat | undefined> {
    const { request, name } = callingRequest(served)
    const ids = await tokeniseChat(request, signal)
    if (ids === undefined) return undefined
    const body = JSON.stringify({ model: served, tokens: Array.from(ids) })
    const text = await http.queryOptional('/detokenize', Detokenised, { body, signal })
    return text === undefined ? undefined : detectToolFormat(text.prompt, name)
  }

  return createEngineUpstream(http, options, {
    kind: 'vllm',
    requestsLogprobs: true,
    assumed: ASSUMED,
    readVersion: async (signal) => (await http.queryOptional('/version', Version, { signal }))?.version,
    send,
    readDefaults,
    renderings: [
      { id: 'render', name: '/v1/chat/completions/render', query: render },
      { id: 'tokenize', name: '/tokenize', query: tokeniseChat },
    ],
    tokenIn: ['chat', 'completions'],
    readToolFormat,
    knownStreams,
    advice: ADVICE,
  })
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
const Detokenised = z.looseObject({ prompt: z.string() })
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
  render: 'All supported versions have /tokenize; a proxy in front of the engine must relay it.',
  weightVersion: 'vLLM never reports it; set it through the control API of the gateway.',
}

/**
 * Fields that capture needs, independent of the harness's request. `include_reasoning: false` would hide all ids and log
 * probabilities; `top_logprobs: 0` is the cheapest value that reports the sampled token.
 */
function forcedFields(request: TurnRequest, stream: boolean, model: string | undefined): Record<string, unknown> {
  return { ...captureFields(request, stream, model), return_token_ids: true, include_reasoning: true }
}

const VllmConfig = z.strictObject({ kind: z.literal('vllm'), ...engineConfigFields })

export const vllm: Plug<typeof VllmConfig, unknown, Upstream> = {
  config: VllmConfig,
  create: (config) => createVllm(toEngineOptions(config)),
}
