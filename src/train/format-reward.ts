import { commonPrefix } from '../lib/collections/common-prefix.ts'
import { chatText } from '../model/chat-message.ts'
import type { TranscriptEntry } from '../model/transcript.ts'

/** The answer that a task of the demo asks for. */
export function bracketed(word: string): string {
  return `[${word}]`
}

/**
 * The reward of the demo: the share of the asked answer that the answer of the policy begins with. The end of the answer counts
 * as one more character, so an answer with further text after the asked one has less than 1.
 */
export function gradeFormat(transcript: readonly TranscriptEntry[], word: string): number {
  const answer = transcript.find(({ source }) => source === 'sampled')?.message
  if (answer === undefined) return 0
  const [text, asked] = [chatText(answer), bracketed(word)]
  const length = asked.length + 1
  return text === asked ? 1 : commonPrefix(text, asked) / length
}
