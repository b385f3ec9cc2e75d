import { anthropicMessages } from './anthropic-messages.ts'
import type { Dialect } from './dialect.ts'
import { googleGenerate } from './google-generate.ts'
import { openaiChat } from './openai-chat.ts'
import { openaiResponses } from './openai-responses.ts'

/** The first one speaks when nobody knows better. */
export const dialects: readonly [Dialect, ...Dialect[]] = [
  openaiChat,
  openaiResponses,
  anthropicMessages,
  googleGenerate,
]
