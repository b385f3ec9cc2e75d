import type { ChatTemplate } from './chat-template.ts'
import { EngineError } from './errors.ts'
import type { GenerationDeps } from './generation.ts'
import type { Policy } from './policies/policy.ts'
import type { PromptEncoder } from './prompt.ts'
import type { Wire } from './wire.ts'

/** What a policy that can be trained offers besides. */
export interface TrainablePolicy extends Policy {
  /** Added to the logits of every token from now on. */
  setOutputBias(bias: Float32Array): Promise<void>
}

/** What the endpoints work with. */
export interface EngineContext extends GenerationDeps {
  policy: Policy | TrainablePolicy
  template: ChatTemplate
  encoder: PromptEncoder
  maxLogprobs: number
  wire: Wire
  /** Hex digits, never the same twice. */
  newId(): string
}

/** An absent or empty name means the one model there is. */
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
