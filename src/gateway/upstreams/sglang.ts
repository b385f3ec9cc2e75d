import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { WireFields } from '../wire-event.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { readAnswer, type Translated } from './wire/chat-answer.ts'
import { sglangFields as fields } from './wire/chat-fields.ts'
import { askedTopLogprobs, renderChatBody } from './wire/chat-request.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { toEngineSampling } from './wire/engine-sampling.ts'
import { postChat } from './wire/post-chat.ts'
import { probeEngine, type ProbeSubject, type SamplingDefaults } from './wire/probe.ts'
import type { Capabilities, SendOptions, Upstream, UpstreamReply } from './upstream.ts'

/** 0.5.13 to 0.5.18. Newer ones may have ids in streams, which a probe finds out. */
const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'none',
  tokenInChat: true,
  render: true,
  tokenise: true,
  weightVersion: true,
  logprobs: 'tempered',
}

/** What SGLang does with a call that does not say, with `--sampling-defaults openai`. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 1, topP: 1, topK: -1, minP: 0 }

/** SGLang's OpenAI server, from 0.5.13. */
export function createSglang(options: EngineOptions): Upstream {
  const http = new EngineHttp(options)
  let capabilities: Capabilities = { ...ASSUMED, ...options.capabilities }

  /** The version that the engine named last: a call that is sent now is sampled by it or by a newer one. */
  let named: string | undefined
  let tellsVersion = true

  const streams = (request: TurnRequest): boolean =>
    request.stream && (capabilities.idsInStreams === 'complete' || !capabilities.idsOut)

  async function sendAs(
    request: TurnRequest,
    stream: boolean,
    { signal, promptIds, weights }: SendOptions,
  ): Promise<UpstreamReply> {
    const forced = forcedFields(request, stream, options.model)
    if (promptIds !== undefined) forced['input_ids'] = Array.from(promptIds)
    const count = async (): Promise<number> => promptIds?.length ?? countTokens(request, signal)
    const before = await versionBefore(signal, weights)
    const { response, dropped } = await postChat(http, { request, forced, fields, stream, signal, countTokens: count })
    const translate = (wire: WireFields): Translated => {
      const translated = translateAnswer(wire)
      named = translated.weightVersion ?? named
      return before === undefined ? translated : { ...translated, weightVersionBefore: before }
    }
    const { logprobs: mode } = capabilities
    const answer = readAnswer(response, {
      base: http.base,
      signal,
      forStream: request.stream,
      logprobMode: mode === 'unknown' ? undefined : mode,
      translate,
      translateChunk,
      weights,
    })
    // A prompt may be a hundred thousand numbers, and the log has them already.
    if (promptIds !== undefined) forced['input_ids'] = `${promptIds.length} ids`
    const sampling = toEngineSampling(request, { forced, fields }, DOCUMENTED_SAMPLING, capabilities.defaultSampling)
    return { forced, dropped, sampling, ...answer }
  }

  /** Asked in front of every call unless the trainer names versions, for the answer tells only the version at its end. */
  async function versionBefore(signal: AbortSignal, weights: SendOptions['weights']): Promise<string | undefined> {
    if (!tellsVersion || (weights !== undefined && weights.position > 0)) return named
    try {
      const version = await readWeightVersion(http, signal)
      tellsVersion = version !== undefined
      named = version ?? named
    } catch {
      // The call itself finds out what is wrong with the engine.
    }
    return named
  }

  /** From 0.5.12 conversations too, by the code that chat uses. An answer limit is checked here as well. */
  function tokeniseChat(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined> {
    const forced = {
      ...(options.model === undefined ? {} : { model: options.model }),
      max_tokens: 1,
      max_completion_tokens: 1,
    }
    return http.askIfThere('/tokenize', Tokenised, { body: renderChatBody(request, forced, fields).text, signal })
  }

  async function tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array> {
    const ids = await tokeniseChat(request, signal)
    if (ids !== undefined) return ids
    throw new RolloutError('upstream.refused', `The engine at ${http.base} cannot tokenise this conversation.`)
  }

  async function countTokens(request: TurnRequest, signal: AbortSignal): Promise<number> {
    return (await tokenise(request, signal)).length
  }

  return {
    kind: 'sglang',
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
          kind: 'sglang',
          http,
          model: options.model,
          asksLogprobs: true,
          assumed: ASSUMED,
          readVersion: () => readVersion(http, signal),
          send: (request, sendOptions) => sendAs(request, request.stream, sendOptions),
          readDefaults: () => readDefaults(http, signal),
          render: { name: '/tokenize with messages', isPrompt: true, ask: tokeniseChat },
          tokenise: {
            name: '/tokenize',
            isPrompt: false,
            ask: () => http.askIfThere('/tokenize', Tokenised, { body: '{"prompt":"Paris"}', signal }),
          },
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

const Tokenised = z.looseObject({ tokens: z.array(z.int()) }).transform((body) => Int32Array.from(body.tokens))
const WeightVersion = z.looseObject({ weight_version: z.string() })
const ServerInfo = z.looseObject({ version: z.string() })

/** The older name is still served, and logs a warning at the engine. */
async function readVersion(http: EngineHttp, signal: AbortSignal): Promise<string | undefined> {
  const info =
    (await http.askIfThere('/server_info', ServerInfo, { signal })) ??
    (await http.askIfThere('/get_server_info', ServerInfo, { signal }))
  return info?.version
}

/** The newer name first. */
async function readWeightVersion(http: EngineHttp, signal: AbortSignal): Promise<string | undefined> {
  const info =
    (await http.askIfThere('/weight_version', WeightVersion, { signal })) ??
    (await http.askIfThere('/get_weight_version', WeightVersion, { signal }))
  return info?.weight_version
}

/** Where the model's own settings apply, that can be seen, but not what they are. */
async function readDefaults(http: EngineHttp, signal: AbortSignal): Promise<SamplingDefaults | undefined> {
  const schema = z.looseObject({ sampling_defaults: z.string() })
  const info = await http.askIfThere('/server_info', schema, { signal })
  if (info === undefined) return undefined
  return info.sampling_defaults === 'model' ? { ofModel: true } : { temperature: 1, top_p: 1, top_k: -1, min_p: 0 }
}

const ADVICE: ProbeSubject['advice'] = {
  idsOut: 'Chat answers carry ids from SGLang 0.5.13 on; the model gateway in gRPC mode leaves them out.',
  sampling: 'Start the server with --sampling-defaults openai to keep them out.',
  tools: 'Start the server with --tool-call-parser NAME.',
  streams:
    'Versions after 0.5.18 send ids at the end of a stream, and all log probabilities only if a tool or reasoning parser is set.',
  tokenIn: 'SGLang 0.5.13 or newer takes ids in chat.',
  render: 'SGLang 0.5.12 or newer tokenises conversations.',
  weightVersion: 'Give a weight_version with each weight update.',
}

/**
 * What capture needs. Whole answers: the ids by both names there are, so that one call works on every version; unknown
 * fields are ignored. Streams refuse those, and newer versions send the ids in their extension.
 */
function forcedFields(request: TurnRequest, stream: boolean, model: string | undefined): Record<string, unknown> {
  const whole = { return_token_ids: true, return_prompt_token_ids: true, return_meta_info: true }
  return {
    ...(model === undefined ? {} : { model }),
    logprobs: true,
    top_logprobs: askedTopLogprobs(request),
    ...(stream
      ? {
          return_input_ids_in_sglext: true,
          return_output_ids_in_sglext: true,
          stream_options: { include_usage: true },
        }
      : whole),
    ...(request.stream && !stream ? { stream: false, stream_options: null } : {}),
  }
}

// --- the answer in vLLM's words --------------------------------------------------------------------------------------

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

/** Ids from where this version has them. Of two places that disagree neither is believed. */
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
  const weightVersion = metadata?.weight_version ?? undefined
  return {
    answer: { ...rest, choices: translated, ...(promptIds == null ? {} : { prompt_token_ids: promptIds }) },
    ...(weightVersion === undefined ? {} : { weightVersion }),
    doubts,
  }
}

/** The chunk in front of the last, which has all ids and nothing else. */
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
