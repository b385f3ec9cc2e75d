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

/** One message of a sample, and the call that sampled it; absent for all that was not sampled in this sample. */
export interface Speech {
  message: ChatMessage
  call?: SampleCall
  isPrompt: boolean
}

/** The sample's conversation from its first message to its last. Its calls' answers stand in the response, in order. */
export function* speechOf(sample: Sample, { prompt, response } = sample.messages()): Generator<Speech> {
  for (const message of prompt) yield { message: toChatMessage(message), isPrompt: true }
  const calls = sample.calls.values()
  for (const said of response) {
    const message = toChatMessage(said)
    const call = message.role === 'assistant' ? calls.next().value : undefined
    yield { message, isPrompt: false, ...(call === undefined ? {} : { call }) }
  }
}
