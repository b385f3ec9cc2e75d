import { toChatMessage, type ChatMessage } from './chat-message.ts'
import type { Sample, SampleCall } from './sample.ts'

/** Whether the log probability of a trained token is unknown. */
export function lacksLogprob({ mask, logprobs }: Sample): boolean {
  return mask.some((trained, i) => trained === 1 && !Number.isFinite(logprobs[i]))
}

/** Replaces unknown log probabilities by 0, for consumers that require a number per token and read only masked tokens. */
export function logprobsOrZero(logprobs: Float32Array): number[] {
  return Array.from(logprobs, (value) => (Number.isFinite(value) ? value : 0))
}

/** One message of a sample, and the calls of the sample whose answers it contains. */
export interface SampleMessage {
  message: ChatMessage
  /** Empty for context; several if the harness joined a truncated answer and its continuation. */
  calls: readonly SampleCall[]
  isPrompt: boolean
}

/** Yields the messages of a sample in order. */
export function* sampleMessages(
  sample: Sample,
  { prompt, response, answers } = sample.messages(),
): Generator<SampleMessage> {
  for (const message of prompt) yield { message: toChatMessage(message), calls: [], isPrompt: true }
  for (const [at, message] of response.entries()) {
    const calls = sample.calls.filter((_, i) => answers[i] === at)
    yield { message: toChatMessage(message), calls, isPrompt: false }
  }
}

/** Whether a message contains answers of the sample and all of them are trained. */
export function isTrainedMessage({ calls }: SampleMessage): boolean {
  return calls.length > 0 && calls.every(({ isTrained }) => isTrained)
}
