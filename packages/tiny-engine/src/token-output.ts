import type { Choice } from './choice.ts'
import type { EventWriter } from './event-stream.ts'
import { isDropped, isOmitted, streamFault } from './faults.ts'
import type { ActiveGeneration, Sink } from './generation.ts'
import { tokenLogprob } from './logprobs.ts'
import type { Fault, SampledToken } from './policies/policy.ts'
import { usageOf, usageText } from './usage.ts'

/** Format of an answer of `/inference/v1/generate`: ids without text. */
export interface TokenStyle {
  id: string
  /** Unix seconds. */
  created: number
  model: string
  /** Null: no log probabilities. */
  topLogprobs: number | null
  includeUsage: boolean
  continuousUsage: boolean
}

export class TokenStreamSink implements Sink {
  readonly #active: ActiveGeneration
  readonly #stream: EventWriter
  readonly #style: TokenStyle
  readonly #envelope: string

  constructor(active: ActiveGeneration, stream: EventWriter, style: TokenStyle) {
    this.#active = active
    this.#stream = stream
    this.#style = style
    this.#envelope = `data: {"request_id":${JSON.stringify(style.id)},"choices":[`
  }

  token(choice: Choice, token: SampledToken): void {
    const { fault, job } = this.#active
    const position = choice.ids.length - 1
    const ids = isDropped(fault, 'token_ids', position) ? '' : token.id
    const finish = choice.finish === undefined ? 'null' : `"${choice.finish.reason}"`
    const idsField = isOmitted(fault, 'token_ids') ? '' : `,"token_ids":[${ids}]`
    const usage = this.#style.continuousUsage ? usageText(job.promptIds.length, choice.ids.length) : 'null'
    this.#stream.write(
      `${this.#envelope}{"index":${choice.index},"logprobs":${this.#logprobs(token, position)},"finish_reason":${finish}${idsField},"routed_experts":null,"sampling_mask":null}],"usage":${usage}}\n\n`,
    )
  }

  /** vLLM sends no chunk without a token, so an abort is visible only by the missing finish reason. */
  end(): void {}

  ready(): Promise<void> | undefined {
    return this.#stream.ready()
  }

  fault(fault: Fault, signal: AbortSignal): Promise<boolean> {
    return streamFault(fault, this.#stream, signal, this.#envelope)
  }

  finish(): void {
    const isWanted = this.#style.includeUsage && !isOmitted(this.#active.fault, 'usage')
    const usage = isWanted ? `${this.#envelope}],"usage":${usageOf([this.#active])}}\n\n` : ''
    this.#stream.end(`${usage}data: [DONE]\n\n`)
  }

  #logprobs(token: SampledToken, position: number): string {
    const { fault } = this.#active
    if (this.#style.topLogprobs === null || isOmitted(fault, 'logprobs')) return 'null'
    return `{"content":[${isDropped(fault, 'logprobs', position) ? '' : tokenLogprob(token, this.#style.topLogprobs)}]}`
  }
}

export class TokenBodySink implements Sink {
  readonly #active: ActiveGeneration
  readonly #style: TokenStyle
  readonly #logprobs: string[][]

  constructor(active: ActiveGeneration, style: TokenStyle) {
    this.#active = active
    this.#style = style
    this.#logprobs = active.choices.map(() => [])
  }

  token(choice: Choice, token: SampledToken): void {
    if (this.#style.topLogprobs === null || isDropped(this.#active.fault, 'logprobs', choice.ids.length - 1)) return
    this.#logprobs[choice.index]!.push(tokenLogprob(token, this.#style.topLogprobs))
  }

  end(): void {}

  toJson(): string {
    const { fault, choices } = this.#active
    const shown = choices.map((choice) => {
      const hasLogprobs = this.#style.topLogprobs !== null && !isOmitted(fault, 'logprobs')
      const logprobs = hasLogprobs ? `{"content":[${this.#logprobs[choice.index]!.join(',')}]}` : 'null'
      const ids = choice.ids.slice(isDropped(fault, 'token_ids', 0) ? 1 : 0)
      const idsField = isOmitted(fault, 'token_ids') ? '' : `,"token_ids":[${ids.join(',')}]`
      return `{"index":${choice.index},"logprobs":${logprobs},"finish_reason":"${choice.finish?.reason ?? 'stop'}"${idsField},"routed_experts":null,"sampling_mask":null}`
    })
    const usage = isOmitted(fault, 'usage') ? 'null' : usageOf([this.#active])
    return `{"request_id":${JSON.stringify(this.#style.id)},"model":${JSON.stringify(this.#style.model)},"created":${this.#style.created},"choices":[${shown.join(',')}],"usage":${usage},"prompt_logprobs":null,"kv_transfer_params":null}`
  }
}
