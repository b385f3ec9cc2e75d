import { anthropicMessages } from './anthropic-messages.ts'
import type { Dialect } from './dialect.ts'
import { googleGenerate } from './google-generate.ts'
import { openaiChat } from './openai-chat.ts'
import { openaiResponses } from './openai-responses.ts'

/** The first dialect renders errors of requests that no dialect recognises. */
export const dialects: readonly [Dialect, ...Dialect[]] = [
  openaiChat,
  openaiResponses,
  anthropicMessages,
  googleGenerate,
]
