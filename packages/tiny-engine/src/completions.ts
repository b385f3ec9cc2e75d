import type { Choice, TokenTexts } from './choice.ts'
import type { EventStream } from './event-stream.ts'
import { isDropped, isOmitted, streamFault } from './faults.ts'
import type { ActiveGeneration, Sink } from './generation.ts'
import { CompletionLogprobs, type LogprobStyle } from './logprobs.ts'
import type { Fault, SampledToken } from './policies/policy.ts'
import { usageOf, usageText } from './usage.ts'

export interface CompletionStyle {
  id: string
  /** Unix seconds. */
  created: number
  model: string
  /** Null: no log probabilities. */
  logprobs: LogprobStyle | null
  returnTokenIds: boolean
  includeUsage: boolean
  continuousUsage: boolean
  streamInterval: number
  /** All prompts share one list of choices; those of prompt i begin at i * n. */
  firstIndex: number
}

/** The part of one choice that was not sent yet. */
class Unsent {
  text = ''
  ids: number[] = []
  tokens: { token: SampledToken; ids: number[] }[] = []

  take(choice: Choice, token: SampledToken, text: string, fault: Fault | undefined): void {
    this.text += text
    const position = choice.ids.length - 1
    if (!isDropped(fault, 'token_ids', position)) this.ids.push(token.id)
    if (!isDropped(fault, 'logprobs', position)) this.tokens.push({ token, ids: choice.ids.slice(-5) })
  }

  logprobsJson(style: CompletionStyle, texts: TokenTexts, offset: number, fault: Fault | undefined): string {
    if (style.logprobs === null || isOmitted(fault, 'logprobs')) return 'null'
    const logprobs = new CompletionLogprobs(texts, style.logprobs, offset)
    for (const { token, ids } of this.tokens) logprobs.push(token, ids)
    return logprobs.toJson()
  }
}

function idFields(
  style: CompletionStyle,
  fault: Fault | undefined,
  ids: readonly number[],
  promptIds?: Int32Array,
): string {
  const shownIds = style.returnTokenIds ? `[${ids.join(',')}]` : 'null'
  const shownPrompt = style.returnTokenIds && promptIds !== undefined ? `[${promptIds.join(',')}]` : 'null'
  const idsField = isOmitted(fault, 'token_ids') ? '' : `,"token_ids":${shownIds}`
  return isOmitted(fault, 'prompt_token_ids') ? idsField : `,"prompt_token_ids":${shownPrompt}${idsField}`
}

/** Streams `/v1/completions`: one chunk per token, also while a stop string holds the text back. */
export class CompletionStreamSink implements Sink {
  readonly #active: ActiveGeneration
  readonly #stream: EventStream
  readonly #style: CompletionStyle
  readonly #texts: TokenTexts
  readonly #unsent: Unsent[]
  readonly #sentText: number[]
  readonly #sentChunks: number[]
  readonly #heads: string[]

  constructor(active: ActiveGeneration, stream: EventStream, style: CompletionStyle, texts: TokenTexts) {
    this.#active = active
    this.#stream = stream
    this.#style = style
    this.#texts = texts
    this.#unsent = active.choices.map(() => new Unsent())
    this.#sentText = active.choices.map(() => 0)
    this.#sentChunks = active.choices.map(() => 0)
    this.#heads = active.choices.map(({ index }) => `${envelope(style)}{"index":${style.firstIndex + index},"text":`)
  }

  token(choice: Choice, token: SampledToken, text: string): void {
    const unsent = this.#unsent[choice.index]!
    unsent.take(choice, token, text, this.#active.fault)
    const isDue = this.#sentChunks[choice.index] === 0 || unsent.ids.length >= this.#style.streamInterval
    if (isDue || choice.finish !== undefined) this.#writeChunk(choice, unsent)
  }

  end(choice: Choice, text: string): void {
    if (choice.ids.length === 0 && choice.finish?.reason === 'abort') return
    const unsent = this.#unsent[choice.index]!
    unsent.text += text
    this.#writeChunk(choice, unsent)
  }

  ready(): Promise<void> | undefined {
    return this.#stream.ready()
  }

  fault(fault: Fault, signal: AbortSignal): Promise<boolean> {
    return streamFault(fault, this.#stream, signal, envelope(this.#style))
  }

  #writeChunk(choice: Choice, unsent: Unsent): void {
    const { fault, job } = this.#active
    const { index } = choice
    const isFirst = this.#sentChunks[index] === 0
    const logprobs = unsent.logprobsJson(this.#style, this.#texts, this.#sentText[index]!, fault)
    const usage = this.#style.continuousUsage ? `,"usage":${usageText(job.promptIds.length, choice.ids.length)}` : ''
    this.#stream.write(
      `${this.#heads[index]}${JSON.stringify(unsent.text)},"logprobs":${logprobs}${finishFields(choice)}${idFields(this.#style, fault, unsent.ids, isFirst ? job.promptIds : undefined)}}]${usage}}\n\n`,
    )
    this.#sentText[index]! += unsent.text.length
    this.#sentChunks[index]! += 1
    this.#unsent[index] = new Unsent()
  }
}

/** The last events of a completion stream, over all its prompts. */
export function completionStreamEnd(actives: readonly ActiveGeneration[], style: CompletionStyle): string {
  const isWanted = style.includeUsage && !actives.some(({ fault }) => isOmitted(fault, 'usage'))
  const usage = isWanted ? `${envelope(style)}],"usage":${usageOf(actives)}}\n\n` : ''
  return `${usage}data: [DONE]\n\n`
}

function envelope(style: CompletionStyle): string {
  return `data: {"id":${JSON.stringify(style.id)},"object":"text_completion","created":${style.created},"model":${JSON.stringify(style.model)},"choices":[`
}

/** Buffers the choices of one prompt until they are complete. */
export class CompletionBodySink implements Sink {
  readonly #active: ActiveGeneration
  readonly #style: CompletionStyle
  readonly #texts: TokenTexts
  readonly #kept: Unsent[]

  constructor(active: ActiveGeneration, style: CompletionStyle, texts: TokenTexts) {
    this.#active = active
    this.#style = style
    this.#texts = texts
    this.#kept = active.choices.map(() => new Unsent())
  }

  token(choice: Choice, token: SampledToken, text: string): void {
    this.#kept[choice.index]!.take(choice, token, text, this.#active.fault)
  }

  end(): void {}

  choicesJson(): string[] {
    const { fault, job, choices } = this.#active
    return choices.map((choice) => {
      const kept = this.#kept[choice.index]!
      const logprobs = kept.logprobsJson(this.#style, this.#texts, 0, fault)
      const ids = idFields(this.#style, fault, kept.ids, job.promptIds)
      return `{"index":${this.#style.firstIndex + choice.index},"text":${JSON.stringify(choice.text)},"logprobs":${logprobs}${finishFields(choice)},"prompt_logprobs":null${ids}}`
    })
  }
}

export function completionJson(
  style: CompletionStyle,
  actives: readonly ActiveGeneration[],
  choices: readonly string[],
): string {
  const isOmittedUsage = actives.some(({ fault }) => isOmitted(fault, 'usage'))
  const usage = isOmittedUsage ? '' : `,"usage":${usageOf(actives)}`
  return `{"id":${JSON.stringify(style.id)},"object":"text_completion","created":${style.created},"model":${JSON.stringify(style.model)},"choices":[${choices.join(',')}],"service_tier":null,"system_fingerprint":null${usage},"kv_transfer_params":null}`
}

function finishFields({ finish }: Choice): string {
  if (finish === undefined) return ',"finish_reason":null,"stop_reason":null'
  return `,"finish_reason":"${finish.reason}","stop_reason":${JSON.stringify(finish.stopReason)}`
}
