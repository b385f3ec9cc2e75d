import { randomUUID } from 'node:crypto'
import type { Dispatcher } from 'undici'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { WireFields } from '../wire-event.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { detectToolFormat, TEXT_TAGS } from './wire/answer-text.ts'
import { readJsonObject, readWhole, type Translated } from './wire/chat-answer.ts'
import { llamacppFields as fields } from './wire/chat-fields.ts'
import { renderChatBody, sentSampling } from './wire/chat-request.ts'
import { answerLimit, completionSampling, toChatChoice } from './wire/completion-call.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp, readRejection, rejectionError } from './wire/engine-http.ts'
import { logprobModeOf, toEngineSampling } from './wire/engine-sampling.ts'
import { createEngineUpstream, type EngineSend } from './wire/engine-upstream.ts'
import { postChat, type PostedChat } from './wire/post-chat.ts'
import { callingRequest, samplingFields, type ProbeSubject } from './wire/probe.ts'
import { captureFields } from './wire/send-chat.ts'
import { alignLogprobs } from './llamacpp-align.ts'
import type { Capabilities, Upstream, UpstreamReply } from './upstream.ts'

const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'lossy',
  tokenIn: 'completions',
  render: 'template',
  weightVersion: false,
  logprobs: 'raw',
}

/** Defaults of llama-server, unless its flags override them. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 0.8, topP: 0.95, topK: 40, minP: 0.05 }

/**
 * llama.cpp's server. Answers are always requested whole: streams lack the ids of characters of several tokens, and reject
 * log probabilities together with tools. The server reports no prompt ids, but renders and tokenises a request as in chat.
 * Only its native completion accepts ids.
 */
export function createLlamacpp(options: EngineOptions): Upstream {
  const http = new EngineHttp(options)
  const { model } = options

  async function send(request: TurnRequest, call: EngineSend): Promise<UpstreamReply> {
    const { signal, promptIds, capabilities, countTokens } = call
    // A failed call aborts the others.
    const group = new AbortController()
    const together = AbortSignal.any([signal, group.signal])
    const calls = forcedCalls(request, model)
    const prompt: Promise<Prompt> =
      promptIds === undefined ? readPrompt(request, together).catch(toNoPrompt) : Promise.resolve({ ids: promptIds })
    try {
      const posted = await Promise.all(
        calls.map((forced) =>
          promptIds === undefined
            ? postChat(http, { request, forced, fields, stream: false, signal: together, countTokens })
            : postCompletion(request, forced, { ...call, promptIds, signal: together }),
        ),
      )
      const responses = posted.map(({ response }) => response)
      const toAnswer = (wire: WireFields): WireFields =>
        promptIds === undefined ? wire : toChatAnswer(wire, request, capabilities)
      const events = readWhole(() => loadAnswer(responses, prompt, capabilities.contextTokens, toAnswer), {
        base: http.base,
        signal,
        forStream: request.stream,
        // The server computes them from the logits of the model, before its grammar.
        logprobMode: logprobModeOf(request, capabilities, { isFree: true }),
      })
      const [forced] = calls
      const sampling = toEngineSampling(request, { forced, fields }, DOCUMENTED_SAMPLING, capabilities)
      return { forced, dropped: posted[0]?.dropped ?? [], sampling, events }
    } catch (error) {
      group.abort()
      throw explainDiscarded(error)
    }
  }

  async function postCompletion(
    request: TurnRequest,
    forced: Record<string, unknown>,
    { promptIds, capabilities, signal }: EngineSend & { promptIds: Int32Array },
  ): Promise<PostedChat> {
    const sent = sentSampling(request, forced, fields)
    const asked = { model: model ?? request.model, prompt: promptIds, limit: sent.maxTokens }
    const body = {
      ...completionSampling(sent),
      n_predict: await answerLimit(http, asked, capabilities, signal),
      n_probs: 1,
      post_sampling_probs: false,
      return_tokens: true,
      preserved_tokens: TEXT_TAGS,
    }
    Object.assign(forced, body, {
      endpoint: '/completion',
      prompt: `${promptIds.length} ids`,
      parsed_by: 'gateway',
    })
    const text = JSON.stringify({ ...body, prompt: Array.from(promptIds) })
    const response = await http.call('/completion', { body: text, signal })
    if (response.statusCode !== 200) throw rejectionError(await readRejection(response), http.base)
    return { response, dropped: [] }
  }

  async function applyTemplate(request: TurnRequest, signal: AbortSignal): Promise<string> {
    const { text: body } = renderChatBody(request, forcedCalls(request, model)[0], fields)
    return (await http.query('/apply-template', Rendered, { body, signal })).prompt
  }

  async function readPrompt(request: TurnRequest, signal: AbortSignal): Promise<{ text: string; ids: Int32Array }> {
    const text = await applyTemplate(request, signal)
    // As in chat: the server removes the template's beginning-of-sequence token and adds it again here.
    const body = JSON.stringify({ content: text, add_special: true, parse_special: true })
    return { text, ids: await http.query('/tokenize', Tokenised, { body, signal }) }
  }

  return createEngineUpstream(http, options, {
    kind: 'llamacpp',
    requestsLogprobs: true,
    assumed: ASSUMED,
    readVersion: async (signal) => (await http.queryOptional('/props', Props, { signal }))?.build_info,
    send,
    readDefaults: (_model, signal) => http.queryOptional('/props', Defaults, { signal }),
    renderings: [
      {
        id: 'template',
        name: '/apply-template and /tokenize',
        query: async (request, signal) => (await readPrompt(request, signal)).ids,
      },
    ],
    tokenIn: ['completions'],
    async readToolFormat(served, signal) {
      const { request, name } = callingRequest(served)
      return detectToolFormat(await applyTemplate(request, signal), name)
    },
    knownStreams: () => ({
      idsInStreams: 'lossy',
      because: 'known: ids of characters made of several tokens are missing, log probabilities with tools rejected',
    }),
    advice: ADVICE,
  })
}

/**
 * The server discards an answer that is no valid UTF-8 or that its parser rejects. A retry of the request may succeed.
 */
function explainDiscarded(error: unknown): unknown {
  if (!(error instanceof RolloutError) || !/does not match the expected \S+ format/.test(error.message)) return error
  const message = `llama.cpp discarded an answer that it could not parse, with its tokens: ${error.message}`
  return new RolloutError('upstream.failed', message, { cause: error, status: error.failure.status })
}

const Rendered = z.looseObject({ prompt: z.string() })
const Tokenised = z.looseObject({ tokens: z.array(z.int()) }).transform((body) => Int32Array.from(body.tokens))
const Defaults = z
  .looseObject({ default_generation_settings: z.looseObject({ params: z.looseObject(samplingFields) }) })
  .transform((props) => props.default_generation_settings.params)
const Props = z.looseObject({ build_info: z.string() })

const ADVICE: ProbeSubject['advice'] = {
  exact:
    'Exceptions: answers that end with a stop string or contain characters of several tokens (emoji, rare scripts) lack log probabilities, and their turns are graded inferred.',
  idsOut: 'Update llama-server: it must support return_tokens and verbose in chat requests.',
  sampling: 'Start the server with --temp 1 --top-k 0 --top-p 1 --min-p 0.',
  tools: 'Start the server with --jinja and a chat template that supports tools.',
  streams: 'No version streams all ids.',
  tokenIn: 'Update llama-server: /completion must accept ids.',
  render: 'Update llama-server: /apply-template is missing.',
  weightVersion: 'llama.cpp never reports it; set it through the control API of the gateway.',
}

/**
 * Fields that capture needs, one call for each choice: with several choices in one call only the first has all its ids.
 * `top_logprobs: 0` would disable log probabilities, and without the field each token would have twenty.
 */
function forcedCalls(
  request: TurnRequest,
  model: string | undefined,
): [Record<string, unknown>, ...Record<string, unknown>[]] {
  const { n } = request.sampling
  const seed = request.forcedSampling?.seed ?? request.sampling.seed
  const fieldsOfAll = captureFields(request, false, model)
  const captured = {
    ...fieldsOfAll,
    top_logprobs: Math.max(1, Number(fieldsOfAll['top_logprobs'])),
    post_sampling_probs: false,
    return_tokens: true,
    verbose: true,
  }
  if (n === 1) return [captured]
  const call = (i: number) => ({ ...captured, n: 1, ...(seed === undefined ? {} : { seed: seed + i }) })
  return [call(0), ...Array.from({ length: n - 1 }, (_, i) => call(i + 1))]
}

// --- translate to vLLM's fields --------------------------------------------------------------------------------------

interface Prompt {
  text?: string
  ids: Int32Array | undefined
  doubt?: string
}

function toNoPrompt(error: unknown): Prompt {
  const reason = error instanceof Error ? error.message : String(error)
  return { ids: undefined, doubt: `the prompt ids could not be had: ${reason}` }
}

const LlamacppAnswer = z.looseObject({
  choices: z
    .array(
      z.looseObject({
        index: z.int(),
        logprobs: z
          .looseObject({ content: z.array(z.looseObject({ id: z.int(), logprob: z.number().nullish() })).nullish() })
          .nullish(),
      }),
    )
    .min(1),
  usage: z.looseObject({ prompt_tokens: z.int(), completion_tokens: z.int() }).nullish(),
  /** The server's native answer. */
  __verbose: z
    .looseObject({
      tokens: z.array(z.int()).nullish(),
      prompt: z.string().nullish(),
      truncated: z.boolean().nullish(),
      stop_type: z.string().nullish(),
      stopping_word: z.string().nullish(),
    })
    .nullish(),
})
type LlamacppAnswer = z.infer<typeof LlamacppAnswer>

async function loadAnswer(
  responses: readonly Dispatcher.ResponseData[],
  prompt: Promise<Prompt>,
  contextTokens: number | undefined,
  toAnswer: (wire: WireFields) => WireFields,
): Promise<Translated> {
  const wires = (await Promise.all(responses.map(readJsonObject))).map(toAnswer)
  const answers = wires.map((wire) => LlamacppAnswer.safeParse(wire).data)
  if (!isWhole(answers)) return { answer: wires[0] ?? {} }
  return mergeAnswers(answers, await prompt, contextTokens)
}

const NativeAnswer = z.looseObject({
  content: z.string(),
  stop_type: z.string().nullish(),
  completion_probabilities: z.array(z.unknown()).nullish(),
  tokens_evaluated: z.int(),
  tokens_predicted: z.int(),
})

/** Translates an answer of `/completion` to one of chat with `verbose`. */
function toChatAnswer(wire: WireFields, request: TurnRequest, capabilities: Capabilities): WireFields {
  const native = NativeAnswer.safeParse(wire).data
  if (native === undefined) return wire
  const id = `cmpl-${randomUUID()}`
  const finishReason = native.stop_type === 'limit' ? 'length' : 'stop'
  const { tokens_evaluated: prompt, tokens_predicted: sampled } = native
  return {
    id,
    object: 'chat.completion',
    created: Math.floor(Date.now() / 1000),
    model: native['model'],
    choices: [
      {
        index: 0,
        ...toChatChoice({ id, text: native.content, finishReason }, request, capabilities),
        logprobs: { content: native.completion_probabilities ?? [] },
      },
    ],
    usage: { prompt_tokens: prompt, completion_tokens: sampled, total_tokens: prompt + sampled },
    __verbose: { ...native, prompt: undefined },
  }
}

function isWhole(answers: readonly (LlamacppAnswer | undefined)[]): answers is LlamacppAnswer[] {
  return answers.length > 0 && answers.every((answer) => answer !== undefined)
}

export function mergeAnswers(
  answers: readonly LlamacppAnswer[],
  prompt: Prompt,
  contextTokens: number | undefined,
): Translated {
  const { __verbose: _native, choices: _choices, usage, ...first } = answers[0]!
  const doubts = prompt.doubt === undefined ? [] : [prompt.doubt]
  const logprobs = new Map<number, Float32Array>()
  const choices = answers.map((answer, index) => {
    const native = answer.__verbose
    const ids = native?.tokens?.length ? native.tokens : undefined
    const choice: WireFields = { ...answer.choices[0], index }
    const listed = answer.choices[0]?.logprobs?.content
    if (ids !== undefined && listed != null) logprobs.set(index, alignLogprobs(ids, listed))
    if (isShifted(answer, contextTokens)) {
      doubts.push(`choice ${index}: the engine threw part of the context away while it sampled`)
    }
    if (!isSameText(native?.prompt, prompt.text)) {
      doubts.push(`choice ${index}: the engine read another prompt than /apply-template gives`)
    }
    const stop = native?.stop_type === 'word' && native.stopping_word ? { stop_reason: native.stopping_word } : {}
    return { ...choice, ...stop, ...(ids === undefined ? {} : { token_ids: ids }) }
  })
  const sampled = answers.reduce((sum, answer) => sum + (answer.usage?.completion_tokens ?? 0), 0)
  return {
    answer: {
      ...first,
      choices,
      ...(prompt.ids === undefined ? {} : { prompt_token_ids: Array.from(prompt.ids) }),
      ...(usage == null
        ? {}
        : { usage: { ...usage, completion_tokens: sampled, total_tokens: usage.prompt_tokens + sampled } }),
    },
    logprobs,
    doubts,
  }
}

/** Whether the server dropped the beginning of the context to continue sampling, which it does with context shift. */
function isShifted({ __verbose: native, usage }: LlamacppAnswer, contextTokens: number | undefined): boolean {
  if (native?.truncated !== true) return false
  const total = (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0)
  return native.stop_type !== 'limit' || (contextTokens !== undefined && total > contextTokens)
}

/** Ignores white space: not every tokenizer preserves it. */
function isSameText(read: string | null | undefined, rendered: string | undefined): boolean {
  if (read == null || rendered === undefined) return true
  return read.replaceAll(/\s/g, '').endsWith(rendered.replaceAll(/\s/g, ''))
}

const LlamacppConfig = z.strictObject({ kind: z.literal('llamacpp'), ...engineConfigFields })

export const llamacpp: Plug<typeof LlamacppConfig, unknown, Upstream> = {
  config: LlamacppConfig,
  create: (config) => createLlamacpp(toEngineOptions(config)),
}
