import type { Dispatcher } from 'undici'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { WireFields } from '../wire-event.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { readJsonObject, readWhole, type Translated } from './wire/chat-answer.ts'
import { llamacppFields as fields } from './wire/chat-fields.ts'
import { askedTopLogprobs, renderChatBody } from './wire/chat-request.ts'
import { engineConfigFields, toEngineOptions, type EngineOptions } from './wire/engine-config.ts'
import { EngineHttp } from './wire/engine-http.ts'
import { toEngineSampling } from './wire/engine-sampling.ts'
import { postChat } from './wire/post-chat.ts'
import { probeEngine, samplingFields, type ProbeSubject } from './wire/probe.ts'
import { alignLogprobs } from './llamacpp-align.ts'
import type { Capabilities, Upstream, UpstreamReply } from './upstream.ts'

const ASSUMED: Capabilities = {
  idsOut: true,
  idsInStreams: 'lossy',
  tokenInChat: false,
  render: true,
  tokenise: true,
  weightVersion: false,
  logprobs: 'raw',
}

/** What llama-server does with a call that does not say, unless its own flags say otherwise. */
const DOCUMENTED_SAMPLING: DefaultSampling = { temperature: 0.8, topP: 0.95, topK: 40, minP: 0.05 }

/**
 * llama.cpp's server. Always asked for whole answers: in streams, ids of characters made of several tokens are missing,
 * and log probabilities are refused together with tools. It reports no prompt ids, but renders and tokenises a request
 * the way chat does.
 */
export function createLlamacpp(options: EngineOptions): Upstream {
  const http = new EngineHttp(options)
  let capabilities: Capabilities = { ...ASSUMED, ...options.capabilities }

  async function send(request: TurnRequest, { signal }: { signal: AbortSignal }): Promise<UpstreamReply> {
    // One that fails takes the others with it.
    const group = new AbortController()
    const together = AbortSignal.any([signal, group.signal])
    const calls = forcedCalls(request, options.model)
    const prompt: Promise<Prompt> = readPrompt(request, together).catch(toNoPrompt)
    try {
      const posted = await Promise.all(
        calls.map((forced) => {
          const countTokens = async () => (await tokenise(request, together)).length
          return postChat(http, { request, forced, fields, stream: false, signal: together, countTokens })
        }),
      )
      const responses = posted.map(({ response }) => response)
      const { logprobs: mode } = capabilities
      const events = readWhole(() => loadAnswer(responses, prompt, capabilities.contextTokens), {
        base: http.base,
        signal,
        forStream: request.stream,
        logprobMode: mode === 'unknown' ? undefined : mode,
      })
      const [forced] = calls
      const sampling = toEngineSampling(request, { forced, fields }, DOCUMENTED_SAMPLING, capabilities.defaultSampling)
      return { forced, dropped: posted[0]?.dropped ?? [], sampling, events }
    } catch (error) {
      group.abort()
      throw explained(error)
    }
  }

  async function readPrompt(request: TurnRequest, signal: AbortSignal): Promise<{ text: string; ids: Int32Array }> {
    const { text: body } = renderChatBody(request, forcedCalls(request, options.model)[0], fields)
    const { prompt: text } = await http.ask('/apply-template', Rendered, { body, signal })
    return { text, ids: await tokeniseText(text, signal) }
  }

  async function tokeniseText(text: string, signal: AbortSignal): Promise<Int32Array> {
    // As chat does it: the template's own beginning of sequence was taken off, and is put on again here.
    const body = JSON.stringify({ content: text, add_special: true, parse_special: true })
    return http.ask('/tokenize', Tokenised, { body, signal })
  }

  async function tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array> {
    return (await readPrompt(request, signal)).ids
  }

  return {
    kind: 'llamacpp',
    url: http.base,
    get capabilities() {
      return capabilities
    },
    send,
    tokenise,
    countTokens: async (request, signal) => (await tokenise(request, signal)).length,
    listModels: (signal) => http.listModels(signal),
    contextTokens: (model, signal) => http.contextTokens(model, signal),
    async probe(signal) {
      const report = await probeEngine(
        {
          kind: 'llamacpp',
          http,
          model: options.model,
          asksLogprobs: true,
          assumed: ASSUMED,
          readVersion: async () => (await http.askIfThere('/props', Props, { signal }))?.build_info,
          send,
          readDefaults: () => http.askIfThere('/props', Defaults, { signal }),
          render: { name: '/apply-template and /tokenize', isPrompt: true, ask: tokenise },
          tokenise: { name: '/tokenize', isPrompt: false, ask: () => tokeniseText('Paris', signal) },
          knownStreams: () => ({
            idsInStreams: 'lossy',
            because:
              'known: ids of characters made of several tokens are missing, log probabilities with tools refused',
          }),
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

/**
 * What the model writes must be valid UTF-8 and fit the server's parser, or the server throws the whole answer away. The
 * same request may go well the next time.
 */
function explained(error: unknown): unknown {
  if (!(error instanceof RolloutError) || !/does not match the expected \S+ format/.test(error.message)) return error
  const message = `llama.cpp threw an answer away that it could not parse, and its tokens with it: ${error.message}`
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
    'Not so where a stop string ends them, or where a character takes several tokens (emoji, rare scripts): log probabilities are missing there, and the turn is graded inferred.',
  idsOut: 'llama-server must know return_tokens and verbose in chat requests; update it.',
  sampling: 'Start the server with --temp 1 --top-k 0 --top-p 1 --min-p 0.',
  tools: 'Start the server with --jinja and a chat template that knows tools.',
  streams: 'No version streams all ids.',
  tokenIn: 'No version takes ids in chat.',
  render: 'Update llama-server: /apply-template is missing.',
  weightVersion: 'llama.cpp never says; set it through the gateway’s control API.',
}

/**
 * What capture needs, one call for each choice: of several in one call only the first has all its ids. `top_logprobs: 0`
 * would switch log probabilities off, and without it there would be twenty of each.
 */
function forcedCalls(
  request: TurnRequest,
  model: string | undefined,
): [Record<string, unknown>, ...Record<string, unknown>[]] {
  const { n } = request.sampling
  const seed = request.forcedSampling?.seed ?? request.sampling.seed
  const captured = {
    ...(model === undefined ? {} : { model }),
    logprobs: true,
    top_logprobs: Math.max(1, askedTopLogprobs(request)),
    post_sampling_probs: false,
    return_tokens: true,
    verbose: true,
    ...(request.stream ? { stream: false, stream_options: null } : {}),
  }
  if (n === 1) return [captured]
  const call = (i: number) => ({ ...captured, n: 1, ...(seed === undefined ? {} : { seed: seed + i }) })
  return [call(0), ...Array.from({ length: n - 1 }, (_, i) => call(i + 1))]
}

// --- the answer in vLLM's words --------------------------------------------------------------------------------------

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
): Promise<Translated> {
  const wires = await Promise.all(responses.map(readJsonObject))
  const answers = wires.map((wire) => LlamacppAnswer.safeParse(wire).data)
  if (!isWhole(answers)) return { answer: wires[0] ?? {} }
  return mergeAnswers(answers, await prompt, contextTokens)
}

function isWhole(answers: readonly (LlamacppAnswer | undefined)[]): answers is LlamacppAnswer[] {
  return answers.length > 0 && answers.every((answer) => answer !== undefined)
}

/** One answer of several, each with a choice of its own. */
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

/** With context shift on, the server goes on past the end of the context by forgetting its beginning. */
function isShifted({ __verbose: native, usage }: LlamacppAnswer, contextTokens: number | undefined): boolean {
  if (native?.truncated !== true) return false
  const total = (usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0)
  return native.stop_type !== 'limit' || (contextTokens !== undefined && total > contextTokens)
}

/** White space apart: not every tokenizer gives it back as it was. */
function isSameText(read: string | null | undefined, rendered: string | undefined): boolean {
  if (read == null || rendered === undefined) return true
  return read.replaceAll(/\s/g, '').endsWith(rendered.replaceAll(/\s/g, ''))
}

const LlamacppConfig = z.strictObject({ kind: z.literal('llamacpp'), ...engineConfigFields })

export const llamacpp: Plug<typeof LlamacppConfig, unknown, Upstream> = {
  config: LlamacppConfig,
  create: (config) => createLlamacpp(toEngineOptions(config)),
}
