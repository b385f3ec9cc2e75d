import type { Choice, TokenTexts } from './choice.ts'
import type { EventWriter } from './event-stream.ts'
import { isDropped, isOmitted, streamFault } from './faults.ts'
import type { ActiveGeneration, Sink } from './generation.ts'
import { chatLogprob, type LogprobStyle } from './logprobs.ts'
import { joinParts, OutputParser, type OutputPart } from './output-parser.ts'
import type { Fault, SampledToken } from './policies/policy.ts'
import { usageOf, usageText } from './usage.ts'

/** Format of a chat answer. */
export interface ChatStyle {
  id: string
  /** Unix seconds. */
  created: number
  model: string
  role: string
  parseTools: boolean
  /** Whether the request named a tool: the finish reason stays `stop`. */
  isNamedTool: boolean
  /** `parallel_tool_calls: false`: only the first call is returned. */
  onlyFirstCall: boolean
  /** Null: no log probabilities. */
  logprobs: LogprobStyle | null
  returnTokenIds: boolean
  /** False hides reasoning, and with it the ids and log probabilities that would reveal it. */
  includeReasoning: boolean
  /** Field names of reasoning; some versions write two. */
  reasoningFields: readonly ('reasoning' | 'reasoning_content')[]
  /** Whether a stream omits chunks without text, and the ids in them. */
  losesHeldIds: boolean
  promptText: string | null
  includeUsage: boolean
  continuousUsage: boolean
  streamInterval: number
  newToolCallId: () => string
}

/** Parser and counters of one choice. */
class ChatChoice {
  readonly parser: OutputParser
  parts: OutputPart[] = []
  logprobs: string[] = []
  ids: number[] = []
  reasoningTokens = 0
  hasCalls = false
  sentChunks = 0

  constructor(style: ChatStyle) {
    this.parser = new OutputParser({ reasoning: true, tools: style.parseTools })
  }

  take(choice: Choice, token: SampledToken, text: string, context: ChatContext): void {
    const { style, texts, fault } = context
    if (this.parser.inReasoning) this.reasoningTokens += 1
    this.#takeText(choice, text)
    const position = choice.ids.length - 1
    if (!isDropped(fault, 'token_ids', position)) this.ids.push(token.id)
    if (style.logprobs !== null && !isDropped(fault, 'logprobs', position)) {
      this.logprobs.push(chatLogprob(token, choice.ids, texts, style.logprobs))
    }
  }

  end(choice: Choice, text: string): void {
    this.#takeText(choice, text)
  }

  #takeText(choice: Choice, text: string): void {
    const parts = this.parser.push(text)
    for (const part of parts) this.parts.push(part)
    if (choice.finish !== undefined) this.parts.push(...this.parser.finish())
    this.hasCalls ||= this.parts.some((part) => part.type === 'tool-call')
  }

  finishReason(choice: Choice, style: ChatStyle): string {
    return this.hasCalls && !style.isNamedTool ? 'tool_calls' : (choice.finish?.reason ?? 'stop')
  }
}

interface ChatContext {
  style: ChatStyle
  texts: TokenTexts
  fault: Fault | undefined
}

/** Writes the answer as vLLM streams it: one chunk per token, ids immediately, text when the parsers release it. */
export class ChatStreamSink implements Sink {
  readonly #context: ChatContext
  readonly #active: ActiveGeneration
  readonly #stream: EventWriter
  readonly #choices: ChatChoice[]
  /** `data: {…"choices":[{"index":0,"delta":` of each choice: the constant start of its chunks. */
  readonly #heads: string[]
  readonly #envelope: string
  #hasBegun = false

  constructor(active: ActiveGeneration, stream: EventWriter, style: ChatStyle, texts: TokenTexts) {
    this.#active = active
    this.#stream = stream
    this.#context = { style, texts, fault: active.fault }
    this.#choices = active.choices.map(() => new ChatChoice(style))
    this.#envelope = `data: {"id":${JSON.stringify(style.id)},"object":"chat.completion.chunk","created":${style.created},"model":${JSON.stringify(style.model)},"choices":[`
    this.#heads = active.choices.map(({ index }) => `${this.#envelope}{"index":${index},"delta":`)
  }

  token(choice: Choice, token: SampledToken, text: string): void {
    this.#begin()
    const own = this.#choices[choice.index]!
    own.take(choice, token, text, this.#context)
    const isDue = own.sentChunks === 0 || own.ids.length >= this.#context.style.streamInterval
    if (isDue || choice.finish !== undefined) this.#writeChunk(choice, own)
  }

  end(choice: Choice, text: string): void {
    this.#begin()
    // vLLM sends no chunk of a choice that was aborted before its first token.
    if (choice.ids.length === 0 && choice.finish?.reason === 'abort') return
    const own = this.#choices[choice.index]!
    own.end(choice, text)
    this.#writeChunk(choice, own)
  }

  ready(): Promise<void> | undefined {
    return this.#stream.ready()
  }

  fault(fault: Fault, signal: AbortSignal): Promise<boolean> {
    return streamFault(fault, this.#stream, signal, this.#envelope)
  }

  /** Writes usage, if requested, and the end. */
  finish(): void {
    const { style } = this.#context
    const usage = `${this.#envelope}],"usage":${usageJson(this.#active, this.#choices)}}\n\n`
    const isWanted = style.includeUsage && !isOmitted(this.#active.fault, 'usage')
    this.#stream.end(`${isWanted ? usage : ''}data: [DONE]\n\n`)
  }

  #begin(): void {
    if (this.#hasBegun) return
    this.#hasBegun = true
    const { style } = this.#context
    const showIds = style.returnTokenIds && !isOmitted(this.#active.fault, 'prompt_token_ids')
    const promptIds = showIds ? `[${this.#active.job.promptIds.join(',')}]` : 'null'
    const tail = `,"prompt_token_ids":${promptIds},"prompt_text":${JSON.stringify(style.promptText)}`
    for (const head of this.#heads) {
      const usage = style.continuousUsage ? `,"usage":${usageText(this.#active.job.promptIds.length, 0)}` : ''
      this.#stream.write(
        `${head}{"role":${JSON.stringify(style.role)},"content":""},"logprobs":null,"finish_reason":null}]${usage}${tail}}\n\n`,
      )
    }
  }

  #writeChunk(choice: Choice, own: ChatChoice): void {
    const { style } = this.#context
    const delta = toDelta(own.parts, style)
    const shown = style.includeReasoning
    own.parts = []
    const isKept = style.returnTokenIds && shown && !style.losesHeldIds
    if (delta === undefined && choice.finish === undefined && !isKept) {
      // Without ids there is no chunk, and log probabilities are lost, as in vLLM.
      own.ids = []
      own.logprobs = []
      return
    }
    let chunk = `${this.#heads[choice.index]}${delta ?? '{}'},"logprobs":`
    const showLogprobs = style.logprobs !== null && shown && !isOmitted(this.#active.fault, 'logprobs')
    chunk += showLogprobs ? `{"content":[${own.logprobs.join(',')}]}` : 'null'
    chunk += choice.finish === undefined ? ',"finish_reason":null' : this.#finishFields(choice, own)
    if (!isOmitted(this.#active.fault, 'token_ids')) {
      chunk += style.returnTokenIds && shown ? `,"token_ids":[${own.ids.join(',')}]` : ',"token_ids":null'
    }
    chunk += '}]'
    if (style.continuousUsage) chunk += `,"usage":${usageText(this.#active.job.promptIds.length, choice.ids.length)}`
    this.#stream.write(`${chunk}}\n\n`)
    own.ids = []
    own.logprobs = []
    own.sentChunks += 1
  }

  #finishFields(choice: Choice, own: ChatChoice): string {
    const reason = own.finishReason(choice, this.#context.style)
    return `,"finish_reason":"${reason}","stop_reason":${JSON.stringify(choice.finish?.stopReason ?? null)}`
  }
}

/** Buffers the answer until it is complete. */
export class ChatBodySink implements Sink {
  readonly #context: ChatContext
  readonly #active: ActiveGeneration
  readonly #choices: ChatChoice[]

  constructor(active: ActiveGeneration, style: ChatStyle, texts: TokenTexts) {
    this.#active = active
    this.#context = { style, texts, fault: active.fault }
    this.#choices = active.choices.map(() => new ChatChoice(style))
  }

  token(choice: Choice, token: SampledToken, text: string): void {
    this.#choices[choice.index]!.take(choice, token, text, this.#context)
  }

  end(choice: Choice, text: string): void {
    this.#choices[choice.index]!.end(choice, text)
  }

  toJson(): string {
    const { style } = this.#context
    const choices = this.#active.choices.map((choice) => this.#choiceJson(choice, this.#choices[choice.index]!))
    const showIds = style.returnTokenIds && !isOmitted(this.#active.fault, 'prompt_token_ids')
    const promptIds = showIds ? `[${this.#active.job.promptIds.join(',')}]` : 'null'
    const usage = isOmitted(this.#active.fault, 'usage') ? '' : `"usage":${usageJson(this.#active, this.#choices)},`
    return `{"id":${JSON.stringify(style.id)},"object":"chat.completion","created":${style.created},"model":${JSON.stringify(style.model)},"choices":[${choices.join(',')}],"service_tier":null,"system_fingerprint":null,${usage}"prompt_logprobs":null,"prompt_token_ids":${promptIds},"prompt_text":${JSON.stringify(style.promptText)},"kv_transfer_params":null}`
  }

  #choiceJson(choice: Choice, own: ChatChoice): string {
    const { style } = this.#context
    const shown = style.includeReasoning
    const showLogprobs = style.logprobs !== null && shown && !isOmitted(this.#active.fault, 'logprobs')
    const logprobs = showLogprobs ? `{"content":[${own.logprobs.join(',')}]}` : 'null'
    const ids = style.returnTokenIds && shown ? `[${own.ids.join(',')}]` : 'null'
    const idsField = isOmitted(this.#active.fault, 'token_ids') ? '' : `,"token_ids":${ids}`
    const stopReason = JSON.stringify(choice.finish?.stopReason ?? null)
    return `{"index":${choice.index},"message":${toMessage(own.parts, style)},"logprobs":${logprobs},"finish_reason":"${own.finishReason(choice, style)}","stop_reason":${stopReason}${idsField}}`
  }
}

/** Returns the parts of one step as a `delta`; undefined if a parser holds everything back. */
function toDelta(parts: readonly OutputPart[], style: ChatStyle): string | undefined {
  if (parts.length === 0) return undefined
  const [only] = parts
  if (parts.length === 1 && only?.type === 'content') return `{"content":${JSON.stringify(only.text)}}`
  let content = ''
  let reasoning = ''
  const calls: string[] = []
  for (const part of parts) {
    switch (part.type) {
      case 'content':
        content += part.text
        break
      case 'reasoning':
        reasoning += part.text
        break
      case 'tool-call':
        if (style.onlyFirstCall && part.index > 0) break
        calls.push(
          `{"id":"${style.newToolCallId()}","type":"function","index":${part.index},"function":{"name":${JSON.stringify(part.name)}}}`,
        )
        break
      case 'arguments':
        if (style.onlyFirstCall && part.index > 0) break
        calls.push(`{"index":${part.index},"function":{"arguments":${JSON.stringify(part.text)}}}`)
        break
    }
  }
  if (!style.includeReasoning) reasoning = ''
  const fields = [
    ...(content === '' ? [] : [`"content":${JSON.stringify(content)}`]),
    ...(reasoning === '' ? [] : style.reasoningFields.map((name) => `"${name}":${JSON.stringify(reasoning)}`)),
    ...(calls.length === 0 ? [] : [`"tool_calls":[${calls.join(',')}]`]),
  ]
  return fields.length === 0 ? undefined : `{${fields.join(',')}}`
}

function toMessage(parts: readonly OutputPart[], style: ChatStyle): string {
  const { content, reasoning, toolCalls } = joinParts(parts)
  const calls = style.onlyFirstCall ? toolCalls.slice(0, 1) : toolCalls
  const isEmpty = content === '' && (calls.length > 0 || reasoning !== '')
  return JSON.stringify({
    role: style.role,
    content: isEmpty ? null : content,
    refusal: null,
    annotations: null,
    audio: null,
    function_call: null,
    ...(calls.length === 0
      ? {}
      : { tool_calls: calls.map((call) => ({ id: style.newToolCallId(), type: 'function', function: call })) }),
    ...Object.fromEntries(
      style.reasoningFields.map((name) => [name, reasoning === '' || !style.includeReasoning ? null : reasoning]),
    ),
  })
}

function usageJson(active: ActiveGeneration, choices: readonly ChatChoice[]): string {
  const reasoning = choices.reduce((sum, { reasoningTokens }) => sum + reasoningTokens, 0)
  return usageOf([active], reasoning)
}
