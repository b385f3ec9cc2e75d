import type { ChatMessage } from './chat-message.ts'

/** A message of the main conversation, and who vouches for it. */
export interface TranscriptEntry {
  /**
   * `sampled`: an answer of the model as the gateway recorded it. `claimed`: a message as the harness sent it, which is
   * under the agent's control: tool results, messages of the harness, assistant messages that no call of the model gave.
   */
  source: 'sampled' | 'claimed'
  message: ChatMessage
  /** An answer that the last prompt does not repeat: the harness left it out, or wrote another message in its place. */
  isLeftOut?: boolean
}
