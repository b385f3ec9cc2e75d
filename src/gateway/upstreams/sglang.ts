import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { WireFields } from '../wire-event.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { Translated } from './wire/chat-answer.ts'
import { sglangFields as fields } from './wire/chat-fields.ts'
import { renderChatBody } from './wire/chat-request.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { createEngineUpstream, type EngineSend } from './wire/engine-upstream.ts'
import type { ProbeSubject, SamplingDefaults } from './wire/probe.ts'
import { captureFields, sendChat } from './wire/send-chat.ts'
import type { Capabilities, Upstream, UpstreamReply } from './upstream.ts'

/** Versions 0.5.13 to 0.5.18. Newer versions may have ids in streams, which a probe detects. */
const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'none',
  tokenIn: 'chat',
  render: 'tokenize',
  weightVersion: true,
  logprobs: 'tempered',
}

/** Defaults of SGLang with `--sampling-defaults openai`. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 1, topP: 1, topK: -1, minP: 0 }

/** SGLang's OpenAI server, from 0.5.13. */
export function createSglang(options: EngineOptions): Upstream {
  const http = new EngineHttp(options)
  const { model } = options

  /** The latest weight version that the engine reported: this or a newer one samples the next call. */
  let latestVersion: string | undefined
  let reportsVersion = true

  async function send(request: TurnRequest, call: EngineSend): Promise<UpstreamReply> {
    const before = await versionBefore(call.signal, call.weights)
    const translate = (wire: WireFields): Translated => {
      const translated = translateAnswer(wire)
      latestVersion = translated.weightVersion ?? latestVersion
      return { ...translated, weightVersionBefore: before }
    }
    return sendChat(http, request, call, {
      fields,
      forced: forcedFields(request, call.stream, model),
      promptField: (ids) => ({ input_ids: ids }),
      documentedSampling: DOCUMENTED_SAMPLING,
      reading: { translate, translateChunk },
    })
  }

  /** Queried before every call unless the trainer sets versions: an answer reports only the version at its end. */
  async function versionBefore(signal: AbortSignal, weights: EngineSend['weights']): Promise<string | undefined> {
    if (!reportsVersion || (weights !== undefined && weights.position > 0)) return latestVersion
    try {
      const version = await readWeightVersion(http, signal)
      reportsVersion = version !== undefined
      latestVersion = version ?? latestVersion
    } catch {
      // The call itself reports the error of the engine.
    }
    return latestVersion
  }

  /** Accepts conversations from 0.5.12 on, rendered as in chat. Also checks the answer limit, so that is set to 1. */
  function tokeniseChat(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const forced = { ...(model === undefined ? {} : { model }), max_tokens: 1, max_completion_tokens: 1 }
    return http.queryOptional('/tokenize', Tokenised, { body: renderChatBody(request, forced, fields).text, signal })
  }

  return createEngineUpstream(http, options, {
    kind: 'sglang',
    requestsLogprobs: true,
    assumed: ASSUMED,
    readVersion: (signal) => readVersion(http, signal),
    send,
    readDefaults: (_model, signal) => readDefaults(http, signal),
    renderings: [{ id: 'tokenize', name: '/tokenize with messages', query: tokeniseChat }],
    tokenIn: ['chat'],
    knownStreams: () => undefined,
    advice: ADVICE,
  })
}

const Tokenised = z.looseObject({ tokens: z.array(z.int()) }).transform((body) => Int32Array.from(body.tokens))
const WeightVersion = z.looseObject({ weight_version: z.string() })
const ServerInfo = z.looseObject({ version: z.string() })

/** Tries the newer path first: the engine logs a warning for the older path. */
async function readVersion(http: EngineHttp, signal: AbortSignal): Promise<string | undefined> {
  const info =
    (await http.queryOptional('/server_info', ServerInfo, { signal })) ??
    (await http.queryOptional('/get_server_info', ServerInfo, { signal }))
  return info?.version
}

/** Tries the newer path first. */
async function readWeightVersion(http: EngineHttp, signal: AbortSignal): Promise<string | undefined> {
  const info =
    (await http.queryOptional('/weight_version', WeightVersion, { signal })) ??
    (await http.queryOptional('/get_weight_version', WeightVersion, { signal }))
  return info?.weight_version
}

/** The engine reports whether the model's generation_config applies, but not its values. */
async function readDefaults(http: EngineHttp, signal: AbortSignal): Promise<SamplingDefaults | undefined> {
  const schema = z.looseObject({ sampling_defaults: z.string() })
  const info = await http.queryOptional('/server_info', schema, { signal })
  if (info === undefined) return undefined
  return info.sampling_defaults === 'model' ? { ofModel: true } : { temperature: 1, top_p: 1, top_k: -1, min_p: 0 }
}

const ADVICE: ProbeSubject['advice'] = {
  idsOut: 'Chat answers contain ids from SGLang 0.5.13 on; the model gateway in gRPC mode omits them.',
  sampling: 'Start the server with --sampling-defaults openai to ignore them.',
  tools: 'Start the server with --tool-call-parser NAME.',
  streams:
    'Versions after 0.5.18 send ids at the end of a stream, and all log probabilities only if a tool or reasoning parser is set.',
  tokenIn: 'SGLang 0.5.13 or newer accepts ids in chat.',
  render: 'SGLang 0.5.12 or newer tokenises conversations.',
  weightVersion: 'Send a weight_version with each weight update.',
}

/**
 * Fields that capture needs. A whole answer is requested with both names of the id fields, because versions differ and
 * ignore unknown fields. Streams reject these fields; newer versions send the ids in their extension.
 */
function forcedFields(request: TurnRequest, stream: boolean, model: string | undefined): Record<string, unknown> {
  const ids = stream
    ? { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true }
    : { return_token_ids: true, return_prompt_token_ids: true, return_meta_info: true }
  return { ...captureFields(request, stream, model), ...ids }
}

// --- translate to vLLM's fields --------------------------------------------------------------------------------------

const Ids = z.custom<number[]>(Array.isArray)

const SglangExtension = z.looseObject({ input_ids: Ids.nullish(), output_ids: z.array(Ids).nullish() })

const SglangAnswer = z.looseObject({
  choices: z.array(
    z.looseObject({
      index: z.int(),
      prompt_token_ids: Ids.nullish(),
      response_token_ids: Ids.nullish(),
      /** `[log probability, id, text]` of every sampled token. */
      meta_info: z
        .looseObject({ output_token_logprobs: z.array(z.tuple([z.unknown(), z.int()], z.unknown())).nullish() })
        .nullish(),
    }),
  ),
  metadata: z.looseObject({ weight_version: z.string().nullish() }).nullish(),
  sglext: SglangExtension.nullish(),
})

/** Reads the ids from the fields of this version. Adds a doubt when two fields disagree. */
export function translateAnswer(wire: WireFields): Translated {
  const parsed = SglangAnswer.safeParse(wire)
  if (!parsed.success) return { answer: wire }
  const { choices, metadata, sglext, ...rest } = parsed.data
  const doubts: string[] = []
  const translated = choices.map((choice) => {
    const { prompt_token_ids: _prompt, response_token_ids, meta_info, ...others } = choice
    const listed = meta_info?.output_token_logprobs?.map(([, id]) => id)
    const ids = response_token_ids ?? sglext?.output_ids?.[choice.index] ?? listed
    if (ids != null && listed !== undefined && !isSame(ids, listed)) {
      doubts.push(`choice ${choice.index}: the engine reported two different lists of ids`)
    }
    return { ...others, ...(ids == null ? {} : { token_ids: ids }) }
  })
  const prompts = choices.map((choice) => choice.prompt_token_ids ?? sglext?.input_ids)
  const promptIds = prompts[0]
  if (promptIds != null && prompts.some((other) => other == null || !isSame(promptIds, other))) {
    doubts.push('the choices have different prompt ids')
  }
  return {
    answer: { ...rest, choices: translated, ...(promptIds == null ? {} : { prompt_token_ids: promptIds }) },
    weightVersion: metadata?.weight_version ?? undefined,
    doubts,
  }
}

/** Translates the last chunk but one, which contains all ids and nothing else. */
export function translateChunk(chunk: WireFields): WireFields {
  if (chunk['sglext'] == null) return chunk
  const { sglext, ...rest } = chunk
  const extension = SglangExtension.safeParse(sglext).data
  if (extension === undefined) return rest
  const { input_ids, output_ids } = extension
  return {
    ...rest,
    ...(input_ids == null ? {} : { prompt_token_ids: input_ids }),
    ...(output_ids == null ? {} : { choices: output_ids.map((ids, index) => ({ index, delta: {}, token_ids: ids })) }),
  }
}

function isSame(one: readonly number[], other: readonly number[]): boolean {
  return one.length === other.length && one.every((id, i) => id === other[i])
}

const SglangConfig = z.strictObject({ kind: z.literal('sglang'), ...engineConfigFields })

export const sglang: Plug<typeof SglangConfig, unknown, Upstream> = {
  config: SglangConfig,
  create: (config) => createSglang(toEngineOptions(config)),
}
