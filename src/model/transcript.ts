import type { ChatMessage } from './chat-message.ts'

/** A message of the main conversation and its source. */
export interface TranscriptEntry {
  /**
   * `sampled`: an answer of the model as the gateway recorded it. `claimed`: a message as the harness sent it, which is
   * under the agent's control: tool results, messages of the harness, assistant messages that the model did not sample.
   */
  source: 'sampled' | 'claimed'
  message: ChatMessage
  /** True for an answer that the last prompt does not repeat: the harness omitted or replaced it. */
  isLeftOut?: boolean
}
