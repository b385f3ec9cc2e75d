import type { Dialect } from './dialect.ts'
import { openaiChat } from './openai-chat.ts'

export const dialects: readonly [Dialect, ...Dialect[]] = [openaiChat]
