import * as z from 'zod'
import { isEqualIds } from '../../../lib/collections/common-prefix.ts'
import { failureClasses, RolloutError, toFailure, type Failure } from '../../../model/failure.ts'
import type { WireEvent } from '../../wire-event.ts'
import type { DefaultSampling, HiddenDefault } from '../../../model/turn-sampling.ts'
import type { FinishReason, TurnRequest, Usage } from '../../../model/turn.ts'
import { continuationOf, type Capabilities, type Finding, type ProbeReport, type UpstreamReply } from '../upstream.ts'
import type { ToolFormat } from './answer-text.ts'
import { contextOf, type EngineHttp } from './engine-http.ts'

/** How one kind of engine is probed, and the advice for its users. */
export interface ProbeSubject {
  kind: string
  http: EngineHttp
  model: string | undefined
  /** Whether log probabilities may be requested. Models with hidden reasoning reject them. */
  requestsLogprobs: boolean
  /** Applies where the probe has no result. */
  assumed: Capabilities
  readVersion(signal: AbortSignal): Promise<string | undefined>
  /** Sends a call that requests ids, and streams it if the request does, even where streams are known to lose ids. */
  send(
    request: TurnRequest,
    options: { signal: AbortSignal; promptIds?: Int32Array; tokenIn?: Capabilities['tokenIn'] },
  ): Promise<UpstreamReply>
  /** Endpoints that return the prompt ids of a chat request, the best first. */
  renderings: readonly Rendering[]
  /** Requests that may accept prompts as ids, the best first. */
  tokenIn: readonly Exclude<Capabilities['tokenIn'], 'none'>[]
  /** Returns how the model writes tool calls; undefined when the gateway cannot parse them. */
  readToolFormat?(model: string, signal: AbortSignal): Promise<ToolFormat | undefined>
  /** Returns the default sampling parameters; undefined when the engine does not report them. */
  readDefaults?(model: string, signal: AbortSignal): Promise<SamplingDefaults | undefined>
  /** Known defects in the streams of a version; undefined when a probe has to test them. */
  knownStreams(version: string | undefined): { idsInStreams: 'lossy' | 'none'; because: string } | undefined
  /** Each is a sentence or empty. */
  advice: {
    /** Which answers are not exact even if the probe succeeds. */
    exact?: string
    idsOut: string
    tools: string
    sampling: string
    streams: string
    tokenIn: string
    render: string
    weightVersion: string
  }
}

interface Rendering {
  id: Exclude<Capabilities['render'], 'none'>
  name: string
  /** Returns undefined when the engine does not have the endpoint. */
  query(request: TurnRequest, signal: AbortSignal): Promise<Int32Array | undefined>
}

/** The same names on every engine. `top_k` of 0 or -1 is no limit. */
export const samplingFields = {
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.number().nullish(),
  min_p: z.number().nullish(),
  repetition_penalty: z.number().nullish(),
} as const

export interface SamplingDefaults extends z.infer<z.ZodObject<typeof samplingFields>> {
  /** The model's own generation_config applies, and its values are unknown. */
  ofModel?: boolean
  /** Parameters with a default of the server whose value is unknown. */
  hidden?: readonly HiddenDefault[]
}

/** Tests what an engine can do, with a few requests of few tokens. */
export async function probeEngine(subject: ProbeSubject, signal: AbortSignal): Promise<ProbeReport> {
  const cards = await subject.http.models(signal)
  const model = subject.model ?? cards[0]?.id
  if (model === undefined) throw new RolloutError('upstream.failed', `${subject.http.base} serves no model.`)
  const version = await subject.readVersion(signal)
  const card = cards.find(({ id }) => id === model)
  const tryCall = async (call: ProbeCall): Promise<Outcome> => {
    const outcome = await callOnce(subject, { ...call, model }, signal)
    // Sampling is random, and a temporary failure shows nothing about the engine's capabilities.
    const isBad = outcome.failure !== undefined && failureClasses[outcome.failure.code].retryable
    const last = isBad ? await callOnce(subject, { ...call, model }, signal) : outcome
    // An engine that is too busy to answer shows nothing about its capabilities either.
    if (last.failure !== undefined && BUSY.has(last.failure.code)) {
      throw new RolloutError(last.failure.code, `The engine at ${subject.http.base} is busy: ${last.failure.message}`)
    }
    return last
  }

  // A server may reject alternatives of tokens (--max-logprobs). Then the only candidate is the likeliest token.
  const tryLikeliest = async (call: ProbeCall): Promise<Outcome> => {
    const outcome = await tryCall({ ...call, alternatives: 5 })
    return outcome.failure === undefined ? outcome : tryCall({ ...call, topK: 1 })
  }

  const whole = await tryCall({ temperature: 1 })
  const callsTool = { tools: true, maxTokens: TOOL_TOKENS }
  const tools = await tryCall({ ...callsTool, stream: subject.knownStreams(version) === undefined })
  const contextTokens = card === undefined ? undefined : contextOf(card)
  const found: Found[] = [
    findVersion(version),
    findModels(
      model,
      cards.map(({ id }) => id),
    ),
    findIdsOut(whole, subject),
    findTools(tools, subject),
    findIdsInStreams(tools, whole, version, subject),
    await findTokenIn(whole, tryCall, subject, () => subject.readToolFormat?.(model, signal)),
    await findRender([probeRequest({ model }), probeRequest({ model, ...callsTool })], [whole, tools], subject, signal),
    findWeightVersion(whole, subject),
    await findLogprobs(
      await tryLikeliest({ temperature: 1 }),
      await tryLikeliest({ temperature: 0.5 }),
      (call) => tryCall({ ...call, alternatives: undefined }),
      subject,
    ),
    ...(await findDefaults(subject, model, signal)),
    findContext(contextTokens),
  ]
  const capabilities: Capabilities = Object.assign({ ...subject.assumed }, ...found.map(({ capability }) => capability))
  const findings = [...found, findContinuation(capabilities, subject)]
  return {
    kind: subject.kind,
    url: subject.http.base,
    version,
    model,
    capabilities,
    findings: findings.map(({ capability: _, ...finding }) => finding),
  }
}

const BUSY: ReadonlySet<string> = new Set(['upstream.overloaded', 'upstream.rate-limited'])

interface Found extends Finding {
  capability?: Partial<Capabilities>
}

// --- calling ---------------------------------------------------------------------------------------------------------

interface ProbeCall {
  temperature?: number
  isPlain?: boolean
  topK?: number
  maxTokens?: number
  stream?: boolean
  tools?: boolean
  logprobs?: boolean
  /** Number of alternatives of each token; absent: as many as capture needs. */
  alternatives?: number
  promptIds?: Int32Array
  tokenIn?: Capabilities['tokenIn']
}

interface Outcome {
  promptIds: Int32Array | undefined
  ids: number
  logprobs: number
  /** Log probability of the likeliest first token. */
  best: number | undefined
  text: string
  finishReason: FinishReason | undefined
  usage: Usage | undefined
  weightVersion: string | undefined
  failure: Failure | undefined
}

async function callOnce(
  subject: ProbeSubject,
  call: ProbeCall & { model: string },
  signal: AbortSignal,
): Promise<Outcome> {
  const outcome: Outcome = {
    promptIds: undefined,
    ids: 0,
    logprobs: 0,
    best: undefined,
    text: '',
    finishReason: undefined,
    usage: undefined,
    weightVersion: undefined,
    failure: undefined,
  }
  try {
    const request = probeRequest({ ...call, logprobs: subject.requestsLogprobs })
    const reply = await subject.send(request, { signal, promptIds: call.promptIds, tokenIn: call.tokenIn })
    for await (const batch of reply.events) for (const event of batch) note(outcome, event)
  } catch (error) {
    outcome.failure = toFailure(error)
  }
  // A cancelled probe and an unreachable engine give no report.
  signal.throwIfAborted()
  if (outcome.failure?.code === 'upstream.unreachable') {
    throw new RolloutError('upstream.unreachable', outcome.failure.message)
  }
  return outcome
}

function note(outcome: Outcome, event: WireEvent): void {
  switch (event.type) {
    case 'answer-start':
      outcome.promptIds = event.promptTokenIds
      outcome.weightVersion = event.weightVersion
      return
    case 'choice-delta':
      outcome.ids += event.ids?.length ?? 0
      outcome.logprobs += event.logprobs?.filter((value) => !Number.isNaN(value)).length ?? 0
      outcome.text += event.text ?? ''
      outcome.finishReason = event.finishReason ?? outcome.finishReason
      outcome.best ??= bestOf(event.wire?.['logprobs'])
      return
    case 'usage':
      outcome.usage = event.usage
      return
    case 'answer-end':
      outcome.promptIds ??= event.promptTokenIds
      return
    case 'answer-error':
      outcome.failure = event.failure
      return
  }
}

interface WireLogprob {
  logprob?: number
  top_logprobs?: WireLogprob[]
}

function bestOf(logprobs: unknown): number | undefined {
  const first = (logprobs as { content?: WireLogprob[] } | null | undefined)?.content?.[0]
  if (first === undefined) return undefined
  const listed = [first, ...(first.top_logprobs ?? [])].flatMap(({ logprob }) => (logprob === undefined ? [] : logprob))
  return listed.length === 0 ? undefined : Math.max(...listed)
}

/** Returns a request in the form of a harness's request, so that the upstream treats it in the same way. */
export function probeRequest(call: ProbeCall & { model: string }): TurnRequest {
  const {
    model,
    temperature = 1,
    topK,
    maxTokens = 1,
    stream = false,
    tools = false,
    logprobs = true,
    isPlain = false,
    alternatives = 0,
    promptIds,
  } = call
  // With ids as the prompt the text differs, to detect an engine that reads the text instead.
  const content = promptIds === undefined ? 'What is the weather in Paris?' : 'Nothing.'
  const body = {
    model,
    messages: [{ role: 'user', content }],
    max_tokens: maxTokens,
    ...(isPlain ? {} : { temperature }),
    ...(topK === undefined ? {} : { top_k: topK }),
    stream,
    ...(logprobs ? { logprobs, top_logprobs: alternatives } : {}),
    ...(tools ? { tools: [WEATHER_TOOL] } : {}),
  }
  return {
    dialect: 'openai-chat',
    model,
    messages: [{ role: 'user', content: [{ type: 'text', text: content }] }],
    tools: tools ? [WEATHER_TOOL.function] : [],
    sampling: { n: 1, maxTokens, temperature, topK },
    stream,
    streamUsage: stream,
    logprobs,
    wire: { api: 'openai-chat', text: JSON.stringify(body), body },
  }
}

/** Returns a request whose conversation has a call of a tool, and the name of the tool. */
export function callingRequest(model: string): { request: TurnRequest; name: string } {
  const { name } = WEATHER_TOOL.function
  const request = probeRequest({ model, tools: true })
  const [asked] = request.messages
  const call = { id: 'call_1', name, arguments: '{"city": "Paris"}' }
  return {
    name,
    request: {
      ...request,
      messages: [
        asked!,
        { role: 'assistant', content: [], toolCalls: [call] },
        { role: 'tool', toolCallId: call.id, content: [{ type: 'text', text: 'sunny' }] },
      ],
      wire: { ...request.wire, api: 'rewritten' },
    },
  }
}

/** Enough for a short sentence and a call. */
const TOOL_TOKENS = 96

const WEATHER_TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Current weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}

// --- findings --------------------------------------------------------------------------------------------------------

function joinSentences(...sentences: readonly (string | undefined)[]): string {
  return sentences.filter((sentence) => sentence !== undefined && sentence !== '').join(' ')
}

function findVersion(version: string | undefined): Found {
  return version === undefined
    ? {
        about: 'version',
        verdict: 'limited',
        evidence: 'the engine does not report it',
        meaning: 'Defects that depend on the version are detected by tests where possible.',
      }
    : { about: 'version', verdict: 'good', evidence: version, meaning: 'Known defects of this version are avoided.' }
}

function findModels(model: string, served: readonly string[]): Found {
  const evidence = `serves ${served.join(', ') || 'nothing'}`
  return served.includes(model)
    ? { about: 'models', verdict: 'good', evidence, meaning: `Calls go to ${model}.` }
    : {
        about: 'models',
        verdict: 'blocking',
        evidence,
        meaning: `${model} is not served. Choose a model that is.`,
        capability: {},
      }
}

function isComplete({ ids, logprobs, usage }: Outcome): boolean {
  return ids > 0 && logprobs === ids && usage?.completionTokens === ids
}

function findIdsOut(whole: Outcome, { advice }: ProbeSubject): Found {
  const about = 'ids-out'
  if (whole.failure !== undefined) {
    return {
      about,
      verdict: 'blocking',
      evidence: `rejected: ${whole.failure.message}`,
      meaning: joinSentences('No answer, so nothing to train on.', advice.idsOut),
      capability: { idsOut: false },
    }
  }
  const prompt = whole.promptIds?.length ?? 0
  const evidence = `${prompt} prompt ids, ${whole.ids} sampled, ${whole.logprobs} log probabilities; usage reports ${
    whole.usage === undefined ? 'nothing' : `${whole.usage.promptTokens} and ${whole.usage.completionTokens}`
  }`
  const isExact = isComplete(whole) && prompt > 0 && whole.usage?.promptTokens === prompt
  return isExact
    ? {
        about,
        verdict: advice.exact === undefined ? 'good' : 'limited',
        evidence,
        meaning: joinSentences('Whole answers are graded exact.', advice.exact),
        capability: { idsOut: true },
      }
    : {
        about,
        verdict: 'blocking',
        evidence,
        meaning: joinSentences('No call can be graded exact, so no call is trained on.', advice.idsOut),
        capability: { idsOut: whole.ids > 0 },
      }
}

function findTools(tools: Outcome, subject: Pick<ProbeSubject, 'advice'>): Found {
  if (tools.failure !== undefined) {
    return {
      about: 'tools',
      verdict: 'blocking',
      evidence: `rejected: ${tools.failure.message}`,
      meaning: joinSentences('Agents send tools with almost every call.', subject.advice.tools),
    }
  }
  // Text that the parser of this model would have removed.
  const isCall = /<tool_call>|"name"\s*:\s*"get_weather"|<function=get_weather/.test(tools.text)
  if (isCall) {
    // Parsers of several engines return a cut call as text.
    const isCut = tools.finishReason === 'length'
    const shown = `${isCut ? 'the model began a call' : 'the model called a tool, and the call arrived as text'}: ${tools.text.trim().slice(0, 60)}`
    const meaning = isCut
      ? `The call did not end within ${TOOL_TOKENS} tokens, so it is unknown whether calls are parsed.`
      : 'Agents receive no tool calls. The parser is missing or belongs to another model.'
    const advice = isCut ? undefined : subject.advice.tools
    return { about: 'tools', verdict: 'limited', evidence: shown, meaning: joinSentences(meaning, advice) }
  }
  const meaning =
    'The engine accepts tools. Whether calls of this model are parsed is known only after the model makes one.'
  return { about: 'tools', verdict: 'good', evidence: 'a request with a tool was answered', meaning }
}

function findIdsInStreams(tools: Outcome, whole: Outcome, version: string | undefined, subject: ProbeSubject): Found {
  const about = 'ids-in-streams'
  const meaning = joinSentences(
    'A call with `stream` is sent without it, and the whole answer is streamed to the harness.',
    subject.advice.streams,
  )
  const known = subject.knownStreams(version)
  if (known !== undefined) {
    return {
      about,
      verdict: 'limited',
      evidence: known.because,
      meaning,
      capability: { idsInStreams: known.idsInStreams },
    }
  }
  if (tools.failure !== undefined) {
    return { about, verdict: 'limited', evidence: 'could not be tested', meaning, capability: { idsInStreams: 'none' } }
  }
  const evidence = `with tools: ${tools.promptIds?.length ?? 0} prompt ids, ${tools.ids} sampled, ${tools.logprobs} log probabilities of ${tools.usage?.completionTokens ?? 'an unknown number of'} tokens`
  if (isComplete(tools) && (tools.promptIds?.length ?? 0) > 0) {
    const capability = { idsInStreams: 'complete' } as const
    return { about, verdict: 'good', evidence, meaning: 'Streams are relayed as they arrive.', capability }
  }
  const idsInStreams = tools.ids > 0 ? 'lossy' : 'none'
  // Without ids a stream loses nothing, so it is as good as a whole answer.
  if (whole.ids === 0) {
    return {
      about,
      verdict: 'limited',
      evidence,
      meaning: 'Streams are relayed as they arrive, without ids.',
      capability: { idsInStreams },
    }
  }
  return { about, verdict: 'limited', evidence, meaning, capability: { idsInStreams } }
}

async function findTokenIn(
  whole: Outcome,
  tryCall: (call: ProbeCall) => Promise<Outcome>,
  { tokenIn, advice }: ProbeSubject,
  readToolFormat: () => Promise<ToolFormat | undefined> | undefined,
): Promise<Found> {
  const about = 'token-in'
  const { promptIds } = whole
  const tried: string[] = []
  for (const endpoint of promptIds === undefined ? [] : tokenIn) {
    const outcome = await tryCall({ promptIds, tokenIn: endpoint })
    const problem = tokenInProblem(outcome, promptIds)
    if (problem === undefined) {
      const toolFormat = endpoint === 'completions' ? await readToolFormat()?.catch(() => undefined) : undefined
      const capability = { tokenIn: endpoint, toolFormat }
      const evidence = [...tried, `${endpoint}: ${outcome.promptIds?.length} ids were sent and read unchanged`].join(
        '; ',
      )
      const isChat = endpoint === 'chat'
      const meaning = isChat
        ? 'A chat request may contain its prompt as ids.'
        : joinSentences('Answers to a prompt of ids are requested whole, and parsed by the gateway.', advice.tokenIn)
      return { about, verdict: isChat ? 'good' : 'limited', evidence, meaning, capability }
    }
    tried.push(`${endpoint}: ${problem}`)
  }
  const untried =
    tokenIn.length === 0 ? 'this kind of engine does not have it' : 'could not be tested without prompt ids'
  return {
    about,
    verdict: 'limited',
    evidence: tried.join('; ') || untried,
    meaning: joinSentences('The engine renders every prompt.', advice.tokenIn),
    capability: { tokenIn: 'none', toolFormat: undefined },
  }
}

function tokenInProblem(outcome: Outcome, sent: Int32Array | undefined): string | undefined {
  if (outcome.failure !== undefined) return `rejected: ${outcome.failure.message}`
  if (outcome.promptIds === undefined || sent === undefined || !isEqualIds(outcome.promptIds, sent)) {
    return `${sent?.length} ids were sent, other ids were read`
  }
  return isComplete(outcome) ? undefined : 'the answer lacks ids or log probabilities'
}

/** `requests` and `answered`: requests with and without tools, and their answers. */
async function findRender(
  requests: readonly TurnRequest[],
  answered: readonly Outcome[],
  { renderings, advice }: ProbeSubject,
  signal: AbortSignal,
): Promise<Found> {
  const about = 'render'
  const tried: string[] = []
  for (const rendering of renderings) {
    const { id, name } = rendering
    const query = (request: TurnRequest) => rendering.query(request, signal).catch(() => undefined)
    const rendered = await Promise.all(requests.map(query))
    const isMissing = rendered.some((ids) => ids === undefined)
    const isRight = rendered.every((ids, i) => {
      const prompt = answered[i]?.promptIds
      return ids !== undefined && (prompt === undefined || isEqualIds(ids, prompt))
    })
    const result = isMissing ? 'no answer' : `${isRight ? 'equal to' : 'different from'} the prompts of chat requests`
    tried.push(`${name}: ${isMissing ? '' : `${rendered.map((ids) => ids?.length).join(' and ')} ids, `}${result}`)
    if (!isRight) continue
    const meaning = 'Prompts can be counted and compared without generating.'
    return { about, verdict: 'good', evidence: tried.join('; '), meaning, capability: { render: id } }
  }
  return {
    about,
    verdict: 'limited',
    evidence: tried.join('; ') || 'this kind of engine does not have it',
    meaning: joinSentences('Tokens are counted in another way, or estimated.', advice.render),
    capability: { render: 'none' },
  }
}

/** The same decision as in every session. */
function findContinuation(capabilities: Capabilities, { advice }: Pick<ProbeSubject, 'advice'>): Found {
  const { via, why } = continuationOf(capabilities)
  const meaning =
    via === 'off'
      ? joinSentences(
          'The engine renders every prompt: where this changes earlier tokens, a new training sample begins.',
          capabilities.tokenIn === 'none' ? advice.tokenIn : advice.render,
        )
      : 'Turns continue the exact tokens of the previous turn, so a session can be one training sample.'
  return { about: 'continuation', verdict: via === 'off' ? 'limited' : 'good', evidence: `${via}: ${why}`, meaning }
}

function findWeightVersion({ weightVersion }: Outcome, { advice }: ProbeSubject): Found {
  return weightVersion === undefined
    ? {
        about: 'weight-version',
        verdict: 'limited',
        evidence: 'answers do not report it',
        meaning: joinSentences('Turns have the version that the trainer sets on the gateway.', advice.weightVersion),
        capability: { weightVersion: false },
      }
    : {
        about: 'weight-version',
        verdict: 'good',
        evidence: `answers report ${weightVersion}`,
        meaning: 'Every turn has the version that sampled it, even if the trainer does not set it on the gateway.',
        capability: { weightVersion: true },
      }
}

export async function findLogprobs(
  whole: Pick<Outcome, 'best'>,
  cooler: Pick<Outcome, 'best'>,
  tryCall: (call: ProbeCall) => Promise<Pick<Outcome, 'best'>>,
  { assumed }: Pick<ProbeSubject, 'assumed'>,
): Promise<Found> {
  const about = 'logprobs'
  const [one, half] = [whole.best, cooler.best]
  if (one === undefined || half === undefined) {
    const evidence = 'no log probabilities to compare'
    const meaning = 'Trainers that need log probabilities of the sampler must compute them.'
    return { about, verdict: 'limited', evidence, meaning, capability: { logprobs: 'unknown' } }
  }
  const shown = `likeliest token ${one.toFixed(4)} at temperature 1, ${half.toFixed(4)} at 0.5`
  // The probability is too close to 1 for a visible effect of temperature.
  if (one > -1e-3) {
    const meaning = `The token is too likely to show a difference; ${assumed.logprobs}, the default, is assumed.`
    return { about, verdict: 'limited', evidence: shown, meaning, capability: { logprobs: assumed.logprobs } }
  }
  if (Math.abs(one - half) <= 0.02 * Math.abs(one)) {
    const meaning =
      'Raw: before temperature and filters. At temperature 1 without top-p and top-k they equal those of the sampler.'
    return { about, verdict: 'good', evidence: shown, meaning, capability: { logprobs: 'raw' } }
  }
  // With a single candidate, a log probability after filters is 0.
  const { best: only = one } = await tryCall({ topK: 1 })
  if (only > -1e-3) {
    const meaning = 'Processed: those of the distribution that was sampled, after temperature, top-p and top-k.'
    const evidence = `${shown}, ${only.toFixed(4)} with top_k 1`
    return { about, verdict: 'good', evidence, meaning, capability: { logprobs: 'processed' } }
  }
  const meaning = 'Tempered: those of the distribution that was sampled, top-p and top-k left out. Recorded as such.'
  return { about, verdict: 'good', evidence: shown, meaning, capability: { logprobs: 'tempered' } }
}

async function findDefaults(subject: ProbeSubject, model: string, signal: AbortSignal): Promise<Found[]> {
  if (subject.readDefaults === undefined) return []
  const defaults = await subject.readDefaults(model, signal).catch(() => undefined)
  signal.throwIfAborted()
  if (defaults !== undefined) return findSampling(defaults, subject.advice.sampling)
  const meaning =
    'Whether the server has sampling defaults of its own is unknown. Set all sampling parameters in the task.'
  const evidence = 'unknown: the engine does not report its defaults, and answers with a fixed seed do not show them'
  return [{ about: 'sampling', verdict: 'limited', evidence, meaning: joinSentences(meaning, subject.advice.sampling) }]
}

/** Empty when the defaults are unknown. */
export function findSampling(defaults: SamplingDefaults | undefined, advice: string): Found[] {
  if (defaults === undefined) return []
  const { temperature, top_p, top_k, min_p, repetition_penalty: penalty, ofModel, hidden = [] } = defaults
  const others = [
    ...(ofModel === true ? ['the model’s generation_config'] : []),
    ...(temperature == null || temperature === 1 ? [] : [`temperature ${short(temperature)}`]),
    ...(top_k == null || top_k <= 0 ? [] : [`top_k ${top_k}`]),
    ...(top_p == null || top_p === 1 ? [] : [`top_p ${short(top_p)}`]),
    ...(min_p == null || min_p === 0 ? [] : [`min_p ${short(min_p)}`]),
    ...(penalty == null || penalty === 1 ? [] : [`repetition_penalty ${short(penalty)}`]),
    ...hidden.map((name) => `another ${HIDDEN_NAMES[name]}, whose value is unknown`),
  ]
  const capability = {
    defaultSampling: toDefaultSampling(defaults),
    ...(hidden.length === 0 ? {} : { hiddenDefaults: [...hidden] }),
  }
  if (others.length === 0) {
    const meaning = 'A call without sampling parameters samples the model’s own distribution.'
    const evidence = 'temperature 1 and no filter by default'
    return [{ about: 'sampling', verdict: 'good', evidence, meaning, capability }]
  }
  const meaning =
    'A call without sampling parameters samples another distribution than that of its log probabilities. Set all of them in the task.'
  return [
    {
      about: 'sampling',
      verdict: 'limited',
      evidence: `by default ${others.join(', ')}`,
      meaning: joinSentences(meaning, advice),
      capability,
    },
  ]
}

const HIDDEN_NAMES: Readonly<Record<HiddenDefault, string>> = {
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  minP: 'min_p',
  repetitionPenalty: 'repetition_penalty',
}

function toDefaultSampling({ temperature, top_p, top_k, min_p }: SamplingDefaults): DefaultSampling {
  return {
    ...(temperature == null ? {} : { temperature: rounded(temperature) }),
    ...(top_p == null ? {} : { topP: rounded(top_p) }),
    ...(top_k == null ? {} : { topK: top_k }),
    ...(min_p == null ? {} : { minP: rounded(min_p) }),
  }
}

function short(value: number): string {
  return String(rounded(value))
}

/** Engines store these in 32 bits, where 0.8 is not exactly 0.8. */
function rounded(value: number): number {
  return Number(value.toFixed(4))
}

function findContext(contextTokens: number | undefined): Found {
  return contextTokens === undefined
    ? {
        about: 'context',
        verdict: 'limited',
        evidence: 'the engine does not report it',
        meaning: 'A prompt that is too long is detected when the engine rejects it.',
        capability: { contextTokens: undefined },
      }
    : {
        about: 'context',
        verdict: 'good',
        evidence: `${contextTokens} tokens`,
        meaning: 'Answer limits are lowered to fit the context together with the prompt.',
        capability: { contextTokens },
      }
}
