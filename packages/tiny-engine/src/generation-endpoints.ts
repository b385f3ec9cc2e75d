import { ChatBodySink, ChatStreamSink, type ChatStyle } from './chat.ts'
import {
  CompletionBodySink,
  completionJson,
  completionStreamEnd,
  CompletionStreamSink,
  type CompletionStyle,
} from './completions.ts'
import { checkModel, type EngineContext, secondsOf } from './context.ts'
import { badRequest, EngineError } from './errors.ts'
import { EventStream, type EventWriter } from './event-stream.ts'
import type { Exchange } from './exchange.ts'
import { cutBody, faultBefore } from './faults.ts'
import { ActiveGeneration, type Job, type Sink } from './generation.ts'
import { firstIdsOf } from './grammar.ts'
import { PromptError } from './inference/pool.ts'
import type { LogprobStyle } from './logprobs.ts'
import { checkPromptLength, fitGivenPrompt, fitRenderedPrompt, toPromptIds, toPromptText } from './prompt.ts'
import { toSamplingParams } from './sampling.ts'
import { TokenBodySink, TokenStreamSink, type TokenStyle } from './token-output.ts'
import { shapeAnswer, ShapedStream, type JsonObject, type Shape } from './wire.ts'
import { ChatBody, checkChatBody, checkCompletionBody, CompletionBody, GenerateBody, parseBody } from './wire-schema.ts'

/** OpenAI's and vLLM's default for completions; chat has none. */
const DEFAULT_MAX_TOKENS = 16

/** `POST /v1/chat/completions` */
export async function chatCompletions(context: EngineContext, exchange: Exchange): Promise<void> {
  const asked = await exchange.readJson()
  const body = parseBody(ChatBody, context.wire.toChatBody(asked))
  const { job, promptText } = toChatJob(context, exchange, body)
  const style = () => toChatStyle(context, body, job.requestId, promptText)
  const shape = context.wire.shape?.(asked as JsonObject, context)
  await answer(context, exchange, job, {
    isStream: body.stream === true,
    shape,
    createStream: (active, stream) => new ChatStreamSink(active, stream, style(), context.texts),
    createBody: (active) => new ChatBodySink(active, style(), context.texts),
  })
}

interface Sinks {
  isStream: boolean
  /** Absent: the format of vLLM. */
  shape?: Shape
  createStream(active: ActiveGeneration, stream: EventWriter): Sink & { finish(): void }
  createBody(active: ActiveGeneration): Sink & { toJson(): string }
}

/** Generates the answer to one prompt and sends it, as a stream or as a whole. */
async function answer(context: EngineContext, exchange: Exchange, job: Job, sinks: Sinks): Promise<void> {
  const { isStream, shape } = sinks
  const active = await ActiveGeneration.start(context, job, exchange.signal)
  try {
    if (await faultBefore(active.fault, exchange, isStream)) return
    if (isStream) {
      const plain = new EventStream(exchange.response)
      const stream = shape === undefined ? plain : new ShapedStream(plain, shape)
      const sink = sinks.createStream(active, stream)
      await endStream(context, stream, async () => {
        if (await active.run(sink)) sink.finish()
      })
    } else {
      const sink = sinks.createBody(active)
      await active.run(sink)
      exchange.sendJson(cutBody(shapeAnswer(sink.toJson(), shape), active.fault))
    }
  } finally {
    active.close()
  }
}

/** The prompt and all settings of its continuation. Also the answer of `/v1/chat/completions/render`. */
export function toChatJob(
  context: EngineContext,
  exchange: Exchange,
  body: ChatBody,
): { job: Job; promptText: string | undefined } {
  checkChatBody(body)
  checkModel(context, body.model)
  if (body.echo === true) throw badRequest('`echo` is not supported by the tiny engine.', 'echo')
  const limits = {
    maxModelLen: context.maxModelLen,
    maxCharsPerToken: context.encoder.maxCharsPerToken,
    maxTokens: body.max_completion_tokens ?? body.max_tokens ?? undefined,
    maxTokensParam: body.max_completion_tokens == null ? 'max_tokens' : 'max_completion_tokens',
  }
  const given = body.kv_transfer_params?.prompt_token_ids ?? []
  const promptText = given.length > 0 ? undefined : toPromptText(body, exchange.rawBody, context.template)
  const { promptIds, maxTokens } = fitPrompt(context, promptText, given, limits)
  const parsesTools = parsesToolsOf(body)
  const job: Job = {
    requestId: `chatcmpl-${baseIdOf(context, exchange, body.request_id)}`,
    endpoint: exchange.path,
    promptIds,
    conversation: { messages: body.messages, tools: body.tools ?? [] },
    sampling: toSamplingParams(
      body,
      {
        maxTokens,
        topLogprobs: wantsLogprobs(body) ? (body.top_logprobs ?? 0) : 0,
        firstIds: context.wire.masksByGrammar ? firstIdsOf(body, context.texts) : undefined,
      },
      samplingLimits(context),
      context.generationConfig,
    ),
    includeStop: body.include_stop_str_in_output ?? false,
    // Tool call tags are special tokens in some models, so vLLM's tool parsers need special tokens.
    skipSpecialTokens: parsesTools ? false : (body.skip_special_tokens ?? true),
  }
  checkPromptLength(promptIds, context.maxModelLen)
  return { job, promptText }
}

function fitPrompt(
  context: EngineContext,
  promptText: string | undefined,
  given: readonly number[],
  limits: Parameters<typeof fitRenderedPrompt>[2],
): ReturnType<typeof fitRenderedPrompt> {
  if (promptText === undefined) {
    return fitGivenPrompt(toPromptIds(given, context.texts.tokenizer.vocabularySize), limits)
  }
  const encode = (): Int32Array => context.encoder.encode(promptText)
  if (!context.wire.lowersMaxTokens) return fitRenderedPrompt(promptText, encode, limits)
  const maxTokens = limits.maxTokens === undefined ? undefined : Math.min(limits.maxTokens, limits.maxModelLen)
  return fitGivenPrompt(encode(), { ...limits, maxTokens })
}

function toChatStyle(context: EngineContext, body: ChatBody, id: string, promptText: string | undefined): ChatStyle {
  const lastRole = body.messages.at(-1)?.role ?? 'assistant'
  return {
    id,
    created: secondsOf(context.now()),
    model: context.modelName,
    role: body.add_generation_prompt === false ? lastRole : 'assistant',
    parseTools: parsesToolsOf(body),
    isNamedTool: typeof body.tool_choice === 'object' && body.tool_choice !== null,
    onlyFirstCall: body.parallel_tool_calls === false,
    logprobs: wantsLogprobs(body) ? logprobStyle(body, body.top_logprobs ?? 0) : null,
    returnTokenIds: body.return_token_ids === true,
    includeReasoning: body.include_reasoning ?? true,
    reasoningFields: context.wire.reasoningFields,
    losesHeldIds: context.wire.losesHeldIds && parsesToolsOf(body),
    promptText: body.return_prompt_text === true ? (promptText ?? null) : null,
    ...streamStyle(body),
    newToolCallId: () => `chatcmpl-tool-${context.newId()}`,
  }
}

/** After the first token, this engine treats `required` and named choices like `auto`: the answer may contain no call. */
function parsesToolsOf(body: ChatBody): boolean {
  return body.tools != null && body.tool_choice !== 'none'
}

/** In vLLM a null `top_logprobs` disables log probabilities, whatever `logprobs` is. */
export function wantsLogprobs(body: ChatBody): boolean {
  return body.logprobs === true && body.top_logprobs !== null
}

/** Format of a completion endpoint that is not vLLM's. */
export interface CompletionFormat {
  toBody(asked: unknown): unknown
  toAnswer(answer: JsonObject): JsonObject
}

/** `POST /v1/completions` */
export async function completions(
  context: EngineContext,
  exchange: Exchange,
  format?: CompletionFormat,
): Promise<void> {
  const asked = await exchange.readJson()
  const body = parseBody(CompletionBody, format === undefined ? asked : format.toBody(asked))
  checkCompletionBody(body)
  checkModel(context, body.model)
  if (body.echo === true) throw badRequest('`echo` is not supported by the tiny engine.', 'echo')
  const id = `cmpl-${baseIdOf(context, exchange, body.request_id)}`
  const jobs = promptsOf(context, body).map((prompt, i) =>
    toCompletionJob(context, exchange, body, prompt, `${id}-${i}`),
  )
  const actives: ActiveGeneration[] = []
  try {
    for (const job of jobs) actives.push(await ActiveGeneration.start(context, job, exchange.signal))
    const style = (first: number): CompletionStyle => ({
      id,
      created: secondsOf(context.now()),
      model: context.modelName,
      logprobs: body.logprobs == null ? null : logprobStyle(body, body.logprobs),
      returnTokenIds: body.return_token_ids === true,
      ...streamStyle(body),
      firstIndex: first * (body.n ?? 1),
    })
    const fault = actives.find((active) => active.fault !== undefined)?.fault
    if (await faultBefore(fault, exchange, body.stream === true)) return
    if (body.stream === true) {
      const stream = new EventStream(exchange.response)
      await endStream(context, stream, async () => {
        const isWhole = await Promise.all(
          actives.map((active, i) => active.run(new CompletionStreamSink(active, stream, style(i), context.texts))),
        )
        if (isWhole.every(Boolean)) stream.end(completionStreamEnd(actives, style(0)))
      })
    } else {
      const sinks = actives.map((active, i) => new CompletionBodySink(active, style(i), context.texts))
      await Promise.all(actives.map((active, i) => active.run(sinks[i]!)))
      const choices = sinks.flatMap((sink) => sink.choicesJson())
      const json = completionJson(style(0), actives, choices)
      const reply = format === undefined ? json : JSON.stringify(format.toAnswer(JSON.parse(json) as JsonObject))
      exchange.sendJson(cutBody(reply, fault))
    }
  } finally {
    for (const active of actives) active.close()
  }
}

type Prompt = { text: string } | { ids: Int32Array }

function promptsOf(context: EngineContext, { prompt }: CompletionBody): Prompt[] {
  const { vocabularySize } = context.texts.tokenizer
  if (prompt == null || typeof prompt === 'string') return [{ text: prompt ?? '' }]
  if (isNumberList(prompt)) return [{ ids: toPromptIds(prompt, vocabularySize) }]
  return prompt.map((one) => (typeof one === 'string' ? { text: one } : { ids: toPromptIds(one, vocabularySize) }))
}

function isNumberList(list: readonly (string | number | number[])[]): list is number[] {
  return typeof list[0] === 'number'
}

function toCompletionJob(
  context: EngineContext,
  exchange: Exchange,
  body: CompletionBody,
  prompt: Prompt,
  requestId: string,
): Job {
  const fitted = fitRenderedPrompt(
    'text' in prompt ? prompt.text : undefined,
    () => ('text' in prompt ? context.encoder.encode(prompt.text) : prompt.ids),
    {
      maxModelLen: context.maxModelLen,
      maxCharsPerToken: context.encoder.maxCharsPerToken,
      maxTokens: body.max_tokens ?? DEFAULT_MAX_TOKENS,
      maxTokensParam: 'max_tokens',
    },
  )
  const resolved = { maxTokens: fitted.maxTokens, topLogprobs: body.logprobs ?? 0 }
  checkPromptLength(fitted.promptIds, context.maxModelLen)
  return {
    requestId,
    endpoint: exchange.path,
    promptIds: fitted.promptIds,
    sampling: toSamplingParams(body, resolved, samplingLimits(context), context.generationConfig),
    includeStop: body.include_stop_str_in_output ?? false,
    skipSpecialTokens: body.skip_special_tokens ?? true,
  }
}

/** `POST /inference/v1/generate`: ids in, ids out. */
export async function generateTokens(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = parseBody(GenerateBody, await exchange.readJson())
  checkModel(context, body.model)
  const params = body.sampling_params
  const promptIds = toPromptIds(body.token_ids, context.texts.tokenizer.vocabularySize)
  checkPromptLength(promptIds, context.maxModelLen)
  const remaining = context.maxModelLen - promptIds.length
  const id = `generate-tokens-${baseIdOf(context, exchange, body.request_id)}`
  const job: Job = {
    requestId: id,
    endpoint: exchange.path,
    promptIds,
    sampling: toSamplingParams(
      params,
      { maxTokens: params.max_tokens ?? remaining, topLogprobs: params.logprobs ?? 0 },
      samplingLimits(context),
    ),
    includeStop: params.include_stop_str_in_output ?? false,
    skipSpecialTokens: params.skip_special_tokens ?? true,
  }
  const style = (): TokenStyle => ({
    id,
    created: secondsOf(context.now()),
    model: context.modelName,
    topLogprobs: params.logprobs ?? null,
    ...streamStyle(body),
  })
  await answer(context, exchange, job, {
    isStream: body.stream === true,
    createStream: (active, stream) => new TokenStreamSink(active, stream, style()),
    createBody: (active) => new TokenBodySink(active, style()),
  })
}

/** The status was already sent, so a failure becomes the last event. */
async function endStream(context: EngineContext, stream: EventWriter, run: () => Promise<void>): Promise<void> {
  try {
    await run()
  } catch (error) {
    const failure = toEngineError(error)
    stream.end(`data: ${context.wire.toErrorBody(failure)}\n\ndata: [DONE]\n\n`)
  }
}

/** Any other error is a defect of the engine or its policy. */
export function toEngineError(error: unknown): EngineError {
  if (error instanceof EngineError) return error
  if (error instanceof PromptError) return badRequest(error.message)
  return new EngineError(500, error instanceof Error ? error.message : String(error), { cause: error })
}

function streamStyle(body: Pick<CompletionBody, 'stream' | 'stream_options' | 'stream_interval'>) {
  const includeUsage = body.stream_options?.include_usage === true
  return {
    includeUsage,
    continuousUsage: includeUsage && body.stream_options?.continuous_usage_stats === true,
    streamInterval: body.stream_interval ?? 1,
  }
}

function logprobStyle(body: { return_tokens_as_token_ids?: boolean | null }, top: number): LogprobStyle {
  return { top, asTokenIds: body.return_tokens_as_token_ids === true }
}

function samplingLimits(context: EngineContext) {
  return { vocabularySize: context.texts.tokenizer.vocabularySize, maxLogprobs: context.maxLogprobs }
}

/** The header has precedence over the id in the body. */
function baseIdOf(context: EngineContext, exchange: Exchange, bodyId: string | undefined): string {
  const header = exchange.request.headers['x-request-id']
  return (typeof header === 'string' ? header : undefined) ?? bodyId ?? context.newId()
}
