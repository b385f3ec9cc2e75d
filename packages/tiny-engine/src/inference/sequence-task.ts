import type { LanguageModel } from './backend.ts'
import { applyOutputWeights } from './output-weights.ts'
import type { OutputWeights } from './output-weights.ts'
import type { Prefill, Reading } from './prefill.ts'
import type { SequenceRequest, TaskEvent } from './protocol.ts'
import { createRandom } from './random.ts'
import type { Random } from './random.ts'
import { sampleToken } from './sampler.ts'
import type { Task, TurnResult } from './task.ts'

export interface SequenceDeps {
  prefill: Prefill
  model: LanguageModel
  outputWeights(): OutputWeights
  emit(event: TaskEvent): void
}

/** One choice of a request: reads the prompt, unless another choice has, then samples tokens. */
export class SequenceTask implements Task {
  readonly id: number
  readonly prefill: Prefill
  readonly #request: SequenceRequest
  readonly #deps: SequenceDeps
  readonly #random: Random
  readonly #promptIds: ReadonlySet<number>
  readonly #counts = new Map<number, number>()
  #credit: number
  #isCancelled = false
  #sampled = 0
  /** The last sampled token, and the key-values before it. */
  #last: { id: number; reading: Reading } | undefined

  constructor(id: number, request: SequenceRequest, deps: SequenceDeps) {
    this.id = id
    this.prefill = deps.prefill
    this.#request = request
    this.#deps = deps
    this.#random = createRandom(request.seed)
    this.#promptIds = new Set(request.sampling.repetitionPenalty === 1 ? [] : request.promptIds)
    this.#credit = request.credit
  }

  grant(tokens: number): void {
    this.#credit += tokens
  }

  /** The current pass ends, but its result is not reported. */
  cancel(): void {
    this.#isCancelled = true
  }

  async turn(): Promise<TurnResult> {
    const reading = await this.#read()
    if (this.#isCancelled) return 'done'
    if (reading === undefined) return 'again'
    const { id, isLast } = this.#sample(reading)
    this.#last = { id, reading }
    if (isLast) return 'done'
    return this.#credit === 0 ? 'stalled' : 'again'
  }

  /** Returns the logits of the next token; absent while the prompt is read. */
  async #read(): Promise<Reading | undefined> {
    if (this.#last !== undefined) {
      return this.#deps.model.forward(Int32Array.of(this.#last.id), this.#last.reading.state)
    }
    if (this.prefill.result === undefined) await this.prefill.advance()
    return this.prefill.result
  }

  #sample({ logits: modelLogits, hidden }: Reading): { id: number; isLast: boolean } {
    const { sampling } = this.#request
    const { eosId, maxLength } = this.#deps.model.shape
    const history = { promptIds: this.#promptIds, counts: this.#counts, length: this.#sampled, eosId }
    const logits = applyOutputWeights(modelLogits, hidden, this.#deps.outputWeights())
    const token = sampleToken(logits, sampling, history, this.#random)
    this.#counts.set(token.id, (this.#counts.get(token.id) ?? 0) + 1)
    this.#sampled++
    this.#credit--
    const isEnd = (token.id === eosId && !sampling.ignoreEos) || sampling.stopTokenIds.includes(token.id)
    const isFull = this.#sampled >= sampling.maxTokens || this.prefill.ids.length + this.#sampled >= maxLength
    const isLast = isEnd || isFull
    this.#deps.emit({ type: 'token', task: this.id, token, cachedTokens: this.prefill.cachedTokens, isLast })
    return { id: token.id, isLast }
  }
}
