import type { LanguageModel } from './backend.ts'
import type { KeyValues } from './key-values.ts'
import type { Prefill } from './prefill.ts'
import type { ScoreRequest, TaskEvent } from './protocol.ts'
import { logSumExp } from './sampler.ts'
import { withOutputBias } from './task.ts'
import type { Task, TurnResult } from './task.ts'

export interface ScoreDeps {
  prefill: Prefill
  model: LanguageModel
  outputBias(): Float32Array | undefined
  emit(event: TaskEvent): void
}

/** Computes raw log probabilities of given tokens after a prompt by reading instead of sampling. */
export class ScoreTask implements Task {
  readonly id: number
  readonly #request: ScoreRequest
  readonly #deps: ScoreDeps
  readonly #logprobs: Float32Array
  #scored = 0
  #state: KeyValues | undefined

  constructor(id: number, request: ScoreRequest, deps: ScoreDeps) {
    this.id = id
    this.#request = request
    this.#deps = deps
    this.#logprobs = new Float32Array(request.ids.length)
  }

  async turn(): Promise<TurnResult> {
    const logits = await this.#read()
    if (logits === undefined) return 'again'
    this.#score(logits)
    if (this.#scored < this.#logprobs.length) return 'again'
    this.#deps.emit({ type: 'scored', task: this.id, logprobs: this.#logprobs })
    return 'done'
  }

  /** Logits of the next tokens to score, row after row; absent while the prompt is read. */
  async #read(): Promise<Float32Array | undefined> {
    const { prefill, model } = this.#deps
    if (this.#state === undefined) {
      await prefill.advance()
      this.#state = prefill.result?.state
      return prefill.result?.logits
    }
    // The last scored token is the first unread token; the final token needs no reading.
    const end = Math.min(this.#scored - 1 + this.#request.stepTokens, this.#logprobs.length - 1)
    const { logits, state } = await model.forward(this.#request.ids.subarray(this.#scored - 1, end), this.#state)
    this.#state = state
    return logits
  }

  #score(logits: Float32Array): void {
    const { vocabularySize } = this.#deps.model.shape
    for (let row = 0; row < logits.length / vocabularySize && this.#scored < this.#logprobs.length; row++) {
      const rowLogits = logits.subarray(row * vocabularySize, (row + 1) * vocabularySize)
      const biased = withOutputBias(rowLogits, this.#deps.outputBias())
      this.#logprobs[this.#scored] = biased[this.#request.ids[this.#scored]!]! - logSumExp(biased)
      this.#scored++
    }
  }
}
