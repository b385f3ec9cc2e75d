import type { LanguageModel } from './backend.ts'
import type { KeyValues } from './key-values.ts'
import { applyOutputWeights } from './output-weights.ts'
import type { OutputWeights } from './output-weights.ts'
import type { Prefill } from './prefill.ts'
import type { ScoreRequest, Scores, TaskEvent } from './protocol.ts'
import { logSumExp } from './sampler.ts'
import type { Task, TurnResult } from './task.ts'

export interface ScoreDeps {
  prefill: Prefill
  model: LanguageModel
  outputWeights(): OutputWeights
  emit(event: TaskEvent): void
}

/** Teacher forcing: reads given tokens after a prompt instead of sampling them. */
export class ScoreTask implements Task {
  readonly id: number
  readonly #request: ScoreRequest
  readonly #deps: ScoreDeps
  readonly #scores: Scores
  #scored = 0
  #state: KeyValues | undefined

  constructor(id: number, request: ScoreRequest, deps: ScoreDeps) {
    this.id = id
    this.#request = request
    this.#deps = deps
    const { vocabularySize, hiddenSize } = deps.model.shape
    const count = request.withPredictions ? request.ids.length : 0
    this.#scores = {
      logprobs: new Float32Array(request.ids.length),
      logits: new Float32Array(count * vocabularySize),
      hidden: new Float32Array(count * hiddenSize),
    }
  }

  async turn(): Promise<TurnResult> {
    const pass = await this.#read()
    if (pass === undefined) return 'again'
    this.#score(pass)
    if (this.#scored < this.#request.ids.length) return 'again'
    this.#deps.emit({ type: 'scored', task: this.id, scores: this.#scores })
    return 'done'
  }

  /** Predictions of the next tokens to score; absent while the prompt is read. */
  async #read(): Promise<Pick<Scores, 'logits' | 'hidden'> | undefined> {
    const { prefill, model } = this.#deps
    if (this.#state === undefined) {
      await prefill.advance()
      this.#state = prefill.result?.state
      return prefill.result
    }
    // The last scored token is the first unread token; the final token needs no reading.
    const end = Math.min(this.#scored - 1 + this.#request.stepTokens, this.#request.ids.length - 1)
    const { state, ...pass } = await model.forward(this.#request.ids.subarray(this.#scored - 1, end), this.#state)
    this.#state = state
    return pass
  }

  #score({ logits, hidden }: Pick<Scores, 'logits' | 'hidden'>): void {
    const { vocabularySize, hiddenSize } = this.#deps.model.shape
    const { ids, withPredictions } = this.#request
    const rows = Math.min(logits.length / vocabularySize, ids.length - this.#scored)
    for (let row = 0; row < rows; row++, this.#scored++) {
      const rowLogits = logits.subarray(row * vocabularySize, (row + 1) * vocabularySize)
      const rowHidden = hidden.subarray(row * hiddenSize, (row + 1) * hiddenSize)
      const weighted = applyOutputWeights(rowLogits, rowHidden, this.#deps.outputWeights())
      this.#scores.logprobs[this.#scored] = weighted[ids[this.#scored]!]! - logSumExp(weighted)
      if (!withPredictions) continue
      this.#scores.logits.set(rowLogits, this.#scored * vocabularySize)
      this.#scores.hidden.set(rowHidden, this.#scored * hiddenSize)
    }
  }
}
