import type { ChatTemplate } from './chat-template.ts'
import { EngineError } from './errors.ts'
import type { GenerationDeps } from './generation.ts'
import type { OutputWeights } from './inference/output-weights.ts'
import type { Policy } from './policies/policy.ts'
import type { PromptEncoder } from './prompt.ts'
import type { GenerationConfig } from './sampling.ts'
import type { Wire } from './wire.ts'

/** Additional methods of a trainable policy. */
export interface TrainablePolicy extends Policy {
  readonly hiddenSize: number
  /** Sets the trainable part of the weights for every following token. */
  setOutputWeights(weights: OutputWeights): Promise<void>
}

/** Dependencies of the endpoints. */
export interface EngineContext extends GenerationDeps {
  policy: Policy | TrainablePolicy
  template: ChatTemplate
  encoder: PromptEncoder
  maxLogprobs: number
  /** Sampling defaults of the chat and completions endpoints. */
  generationConfig?: GenerationConfig
  /** While true, every request is answered with a 503. */
  isLoading: boolean
  wire: Wire
  /** Returns unique hex digits. */
  newId(): string
}

/** An absent or empty name means the only model. */
export function checkModel(context: EngineContext, model: string | null | undefined): void {
  if (model == null || model === '' || model === context.modelName) return
  throw unknownModel(model)
}

export function unknownModel(model: string): EngineError {
  return new EngineError(404, `The model \`${model}\` does not exist.`, { param: 'model' })
}

/** Unix seconds. */
export function secondsOf(milliseconds: number): number {
  return Math.floor(milliseconds / 1000)
}
