import { toChatMessage, type ChatMessage } from './chat-message.ts'
import type { Sample, SampleCall } from './sample.ts'

/** Whether a trained token's log probability is not known, which a list of plain numbers cannot say. */
export function lacksLogprob({ mask, logprobs }: Sample): boolean {
  return mask.some((trained, i) => trained === 1 && !Number.isFinite(logprobs[i]))
}

/** With 0 where there is none: for consumers that want a number at every token and read only those of the mask. */
export function logprobsOrZero(logprobs: Float32Array): number[] {
  return Array.from(logprobs, (value) => (Number.isFinite(value) ? value : 0))
}

/** One message of a sample, and the calls of the sample whose answers it holds. */
export interface Speech {
  message: ChatMessage
  /** Empty for context; more than one where the harness joined a truncated answer and its continuation. */
  calls: readonly SampleCall[]
  isPrompt: boolean
}

/** The sample's conversation from its first message to its last. */
export function* speechOf(sample: Sample, { prompt, response, answers } = sample.messages()): Generator<Speech> {
  for (const message of prompt) yield { message: toChatMessage(message), calls: [], isPrompt: true }
  for (const [at, message] of response.entries()) {
    const calls = sample.calls.filter((_, i) => answers[i] === at)
    yield { message: toChatMessage(message), calls, isPrompt: false }
  }
}

/** Whether a message is trained: it holds answers of the sample, and all of them are trained. */
export function isTrainedSpeech({ calls }: Speech): boolean {
  return calls.length > 0 && calls.every(({ isTrained }) => isTrained)
}
